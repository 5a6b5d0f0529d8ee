use super::*;

#[test]
fn rows_are_in_the_order_of_the_enum() {
    for (index, row) in ROWS.iter().enumerate() {
        assert_eq!(row.ty as usize, index, "{}", row.name);
        assert_eq!(TensorType::from_name(&row.name.to_lowercase()), Some(row.ty));
    }
}

#[test]
fn names_and_ids_are_unique() {
    let names: std::collections::HashSet<_> = ROWS.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), ROWS.len());
    let ids: Vec<_> = ROWS.iter().filter_map(|row| row.ggml_id).collect();
    assert_eq!(ids.iter().collect::<std::collections::HashSet<_>>().len(), ids.len());
    for id in ids {
        assert_eq!(TensorType::withdrawn_ggml_name(id), None, "{id}");
    }
}

#[test]
fn row_bytes_are_checked() {
    assert_eq!(TensorType::Q4_K.row_bytes(512), Some(288));
    assert_eq!(TensorType::Q4_K.row_bytes(500), None);
    assert_eq!(TensorType::F32.row_bytes(u64::MAX), None);
    assert_eq!(TensorType::F4.row_bytes(6), Some(3));
    assert_eq!(TensorType::F6_E2M3.row_bytes(8), Some(6));
}

#[test]
fn safetensors_has_its_own_names() {
    assert_eq!(TensorType::from_safetensors("BF16"), Some(TensorType::BF16));
    assert_eq!(TensorType::from_safetensors("F8_E4M3"), Some(TensorType::F8_E4M3));
    assert_eq!(TensorType::from_safetensors("Q4_K"), None);
    assert_eq!(TensorType::from_safetensors("bf16"), None);
    assert_eq!(TensorType::F8_E4M3.ggml_id(), None);
}

#[test]
fn element_count_does_not_hide_an_overflow_behind_a_zero() {
    assert_eq!(element_count(&[]), Some(1));
    assert_eq!(element_count(&[3, 0]), Some(0));
    assert_eq!(element_count(&[0, u64::MAX, 2]), None);
    assert_eq!(element_count(&[u64::MAX, 2, 0]), None);
}
