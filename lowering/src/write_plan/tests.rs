use super::*;

#[test]
fn a_plan_asks_for_every_feature_that_a_target_needs() {
    for target in Target::ALL {
        let bits = feature_bits(target);
        let mut asked: Vec<&str> = cpu_feature::ALL
            .iter()
            .filter(|(bit, _)| bits & bit != 0)
            .map(|(_, name)| *name)
            .collect();
        let mut needed = target.facts().required.to_vec();
        asked.sort_unstable();
        needed.sort_unstable();
        assert_eq!(asked, needed, "{target:?}");
    }
}
