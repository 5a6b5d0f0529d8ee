//! `strftime_now` of chat templates: the date that some system prompts state.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

const DAY_S: i64 = 86_400;

/// `format` at `unix_s` seconds after 1970-01-01 UTC, in English. Knows
/// `%Y %y %m %d %e %B %b %h %A %a %j %H %I %M %S %p %F %T %D %s %Z %z %%` and their `%-` forms
/// without padding; anything else stays as it is.
pub(crate) fn strftime(format: &str, unix_s: i64) -> String {
    let moment = Moment::new(unix_s);
    let mut out = String::with_capacity(format.len() + 16);
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let rest = chars.as_str();
        let (padded, code) = match rest.strip_prefix('-') {
            Some(rest) => (false, rest.chars().next()),
            None => (true, rest.chars().next()),
        };
        match code.and_then(|code| moment.field(code, padded)) {
            Some(text) => {
                out.push_str(&text);
                chars = rest[usize::from(!padded) + 1..].chars();
            }
            None => out.push('%'),
        }
    }
    out
}

struct Moment {
    unix_s: i64,
    year: i64,
    /// 0 is January.
    month_index: usize,
    day: i64,
    weekday_index: usize,
    day_of_year: i64,
    second_of_day: i64,
}

impl Moment {
    /// Civil date of a day number: years are counted from March, so that the leap day is last
    /// (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`).
    fn new(unix_s: i64) -> Self {
        let days = unix_s.div_euclid(DAY_S);
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * from_march + 2) / 153;
        let month_index = (march_month + 2) % 12;
        let year = year_of_era + era * 400 + i64::from(month_index < 2);
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let day_of_year =
            if from_march >= 306 { from_march - 305 } else { from_march + 60 + i64::from(leap) };
        Self {
            unix_s,
            year,
            month_index: index(month_index),
            day: from_march - (153 * march_month + 2) / 5 + 1,
            weekday_index: index((days + 4).rem_euclid(7)),
            day_of_year,
            second_of_day: unix_s.rem_euclid(DAY_S),
        }
    }

    fn field(&self, code: char, padded: bool) -> Option<String> {
        let number = |value: i64, width: usize| {
            if padded { format!("{value:0width$}") } else { value.to_string() }
        };
        let hour = self.second_of_day / 3_600;
        let (minute, second) = (self.second_of_day / 60 % 60, self.second_of_day % 60);
        let month = MONTHS[self.month_index];
        let weekday = DAYS[self.weekday_index];
        let month_number = self.month_index as i64 + 1;
        Some(match code {
            'Y' => self.year.to_string(),
            'y' => number(self.year.rem_euclid(100), 2),
            'm' => number(month_number, 2),
            'd' => number(self.day, 2),
            'e' if padded => format!("{:2}", self.day),
            'e' => self.day.to_string(),
            'B' => month.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'j' => number(self.day_of_year, 3),
            'H' => number(hour, 2),
            'I' => number((hour + 11) % 12 + 1, 2),
            'M' => number(minute, 2),
            'S' => number(second, 2),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'F' => format!("{}-{month_number:02}-{:02}", self.year, self.day),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            'D' => format!("{month_number:02}/{:02}/{:02}", self.day, self.year.rem_euclid(100)),
            's' => self.unix_s.to_string(),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

/// Months and weekdays are 0 to 11.
fn index(value: i64) -> usize {
    usize::try_from(value).expect("a remainder of a division is not negative")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_pythons() {
        // Expected values by Python's datetime.fromtimestamp(s, timezone.utc).strftime.
        let all = "%Y-%m-%d %j %A %a %B %b %H:%M:%S %I%p %-d %-m %e %y|%%";
        for (unix_s, text) in [
            (0, "1970-01-01 001 Thursday Thu January Jan 00:00:00 12AM 1 1  1 70|%"),
            (951_782_400, "2000-02-29 060 Tuesday Tue February Feb 00:00:00 12AM 29 2 29 00|%"),
            (1_735_689_599, "2024-12-31 366 Tuesday Tue December Dec 23:59:59 11PM 31 12 31 24|%"),
            (1_753_358_645, "2025-07-24 205 Thursday Thu July Jul 12:04:05 12PM 24 7 24 25|%"),
            (-1, "1969-12-31 365 Wednesday Wed December Dec 23:59:59 11PM 31 12 31 69|%"),
        ] {
            assert_eq!(strftime(all, unix_s), text);
        }
    }

    #[test]
    fn unknown_codes_stay() {
        assert_eq!(strftime("100% %Q %-Q %", 0), "100% %Q %-Q %");
    }
}
