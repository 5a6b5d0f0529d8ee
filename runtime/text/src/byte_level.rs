//! The printable alphabet of byte-level BPE: each of the 256 bytes is one character, so that a
//! vocabulary is plain text without spaces or control codes.
//!
//! Bytes that print in Latin-1 (`!`..=`~`, U+00A1..=U+00AC, U+00AE..=U+00FF) stand for
//! themselves; the other 68 are U+0100, U+0101, ... in byte order (GPT-2's `bytes_to_unicode`).

/// True when `byte` is its own character in the alphabet.
const fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// Byte of each character U+0100..=U+0143, in order.
const SHIFTED: [u8; 68] = {
    let mut bytes = [0u8; 68];
    let (mut byte, mut next) = (0usize, 0usize);
    while byte < 256 {
        if !stands_for_itself(byte as u8) {
            bytes[next] = byte as u8;
            next += 1;
        }
        byte += 1;
    }
    bytes
};

/// The byte that `c` stands for, or `None` if it is not in the alphabet.
pub(crate) fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ 0..=0xFF => u8::try_from(code).ok().filter(|&b| stands_for_itself(b)),
        code => SHIFTED.get(code.checked_sub(0x100)? as usize).copied(),
    }
}

/// Appends the bytes that `piece` stands for. Characters outside the alphabet are appended as
/// UTF-8: they occur only in pieces that were added as text.
pub(crate) fn push_bytes(piece: &str, out: &mut Vec<u8>) {
    for c in piece.chars() {
        match byte_of(c) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_covers_every_byte_once() {
        let mut seen = [0u32; 256];
        for code in 0..0x200 {
            if let Some(byte) = char::from_u32(code).and_then(byte_of) {
                seen[usize::from(byte)] += 1;
            }
        }
        assert_eq!(seen, [1; 256]);
        let mut out = Vec::new();
        push_bytes("\u{120}a\u{10A}\u{143}\u{4E2D}", &mut out);
        assert_eq!(out, b" a\n\xAD\xE4\xB8\xAD");
    }
}
