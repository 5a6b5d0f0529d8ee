use super::*;

#[test]
fn sizes_must_fit() {
    let mut out = [0.0; 32];
    let found = decode(TensorType::Q8_0, &[0; 33], &mut out);
    assert_eq!(found, Err(DecodeError::Bytes { ty: TensorType::Q8_0, found: 33 }));
    let found = decode(TensorType::Q8_0, &[0; 34], &mut out[..31]);
    assert_eq!(found, Err(DecodeError::Elements { ty: TensorType::Q8_0, found: 31, needed: 32 }));
    assert_eq!(decode(TensorType::Q8_0, &[], &mut []), Ok(()));
}

#[test]
fn an_unknown_format_is_named() {
    let error = decode(TensorType::IQ2_XXS, &[0; 66], &mut [0.0; 256]).unwrap_err();
    assert_eq!(error, DecodeError::Type { ty: TensorType::IQ2_XXS });
    assert!(error.to_string().contains("IQ2_XXS"), "{error}");
}

/// By hand: d = 0.5, quants 0, 15 in the two halves of the first byte.
#[test]
fn a_block_by_hand() {
    let mut block = [0x88u8; 18];
    block[..2].copy_from_slice(&0x3800u16.to_le_bytes());
    block[2] = 0xf0;
    let mut out = [1.0; 32];
    decode(TensorType::Q4_0, &block, &mut out).unwrap();
    assert_eq!((out[0], out[1], out[16], out[17]), (-4.0, 0.0, 3.5, 0.0));
}
