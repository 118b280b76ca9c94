//! Whether a product's shape, the types of its matrices and the sizes of its buffers agree.

/// Types of elements, and their bits.
const TYPES: [(&str, u32); 7] =
    [("i4", 4), ("i8", 8), ("i16", 16), ("i32", 32), ("bf16", 16), ("f16", 16), ("f32", 32)];

/// The most bytes beside a small matrix. The parameters of AMD's kernels have 200.
const BESIDE_BYTES: u128 = 4096;

/// A buffer of a product.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub(crate) name: &'a str,
    pub(crate) bytes: u64,
    pub(crate) is_written: bool,
}

/// Returns what is wrong with a product `C[m, n] = A[m, k] W[k, n]` whose `types` are those of A, W
/// and C. The one buffer that is written has to be C and have its bytes. A and W may have up to
/// twice theirs and [`BESIDE_BYTES`], since kernels put parameters, scales and padding beside them.
pub(crate) fn check(
    shape: (u32, u32, u32),
    types: [&str; 3],
    operands: &[Operand<'_>],
) -> Result<(), String> {
    let (m, k, n) = shape;
    if m == 0 || k == 0 || n == 0 {
        return Err(format!("{m} x {k} x {n} is no product"));
    }
    let matrices = [("A", m, k), ("W", k, n), ("C", m, n)];
    for ((matrix, rows, columns), kind) in matrices.into_iter().zip(types) {
        let Some((_, bits)) = TYPES.iter().find(|(name, _)| *name == kind) else {
            let known: Vec<&str> = TYPES.iter().map(|(name, _)| *name).collect();
            let known = known.join(", ");
            return Err(format!("{kind:?} as the type of {matrix}, expected one of {known}"));
        };
        let mut found = operands.iter().filter(|operand| operand.name == matrix);
        let (Some(operand), None) = (found.next(), found.next()) else {
            return Err(format!("expected one buffer named {matrix}"));
        };
        let is_result = matrix == "C";
        if operand.is_written != is_result {
            let access = if is_result { "written" } else { "read" };
            return Err(format!("buffer {matrix} has to be {access}"));
        }
        let bytes = u128::from(rows) * u128::from(columns) * u128::from(*bits) / 8;
        let found = u128::from(operand.bytes);
        let most = if is_result { bytes } else { 2 * bytes + BESIDE_BYTES };
        if !(bytes..=most).contains(&found) {
            let range = if is_result { String::new() } else { format!(" to {most}") };
            return Err(format!(
                "buffer {matrix} has {found} bytes; {rows} x {columns} in {kind} are {bytes}{range}"
            ));
        }
    }
    match operands.iter().find(|operand| operand.is_written && operand.name != "C") {
        Some(Operand { name, .. }) => Err(format!("buffer {name} is written, and only C may be")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: [Operand<'_>; 3] = [
        Operand { name: "C", bytes: 96, is_written: true },
        Operand { name: "A", bytes: 300, is_written: false },
        Operand { name: "W", bytes: 32, is_written: false },
    ];

    #[test]
    fn sizes_follow_from_shape_and_types() {
        let types = ["i8", "i4", "i32"];
        check((3, 8, 8), types, &RIGHT).unwrap();
        for (shape, types, problem) in [
            ((3, 0, 8), types, "3 x 0 x 8 is no product"),
            ((2, 8, 8), types, "C has 96 bytes; 2 x 8 in i32 are 64"),
            ((4, 8, 8), types, "C has 96 bytes; 4 x 8 in i32 are 128"),
            ((3, 9, 8), types, "8 in i4 are 36 to 4168"),
            ((3, 8, 8), ["lies", "i4", "i32"], "\"lies\" as the type of A"),
            ((3, 8, 8), ["i8", "i8", "i32"], "W has 32 bytes; 8 x 8 in i8 are 64 to 4224"),
            ((3, 8, 8), ["i8", "i4", "bf16"], "C has 96 bytes; 3 x 8 in bf16 are 48"),
            ((u32::MAX, u32::MAX, u32::MAX), types, "A has 300 bytes"),
        ] {
            let found = check(shape, types, &RIGHT).unwrap_err();
            assert!(found.contains(problem), "{found}");
        }
    }

    #[test]
    fn each_matrix_has_one_buffer() {
        let types = ["i8", "i4", "i32"];
        let with = |at: usize, operand| {
            let mut operands = RIGHT.to_vec();
            operands[at] = operand;
            check((3, 8, 8), types, &operands).unwrap_err()
        };
        let other = Operand { name: "B", ..RIGHT[2] };
        assert_eq!(with(2, other), "expected one buffer named W");
        let twice = Operand { name: "A", ..RIGHT[2] };
        assert_eq!(with(2, twice), "expected one buffer named A");
        assert_eq!(with(1, Operand { is_written: true, ..RIGHT[1] }), "buffer A has to be read");
        let mut operands = RIGHT.to_vec();
        operands.push(Operand { name: "P", bytes: 4, is_written: true });
        let found = check((3, 8, 8), types, &operands).unwrap_err();
        assert_eq!(found, "buffer P is written, and only C may be");
    }
}
