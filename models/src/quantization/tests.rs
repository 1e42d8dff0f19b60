use super::host::{dynamic, floats_of};
use super::{BLOCK, NESTED_START, Quantization, QuantizedMatrix};
use xtrain_graphs::op::CodeBook;

/// Numbers that every language rounds alike.
fn values(count: usize) -> Vec<f32> {
    let value = |i: usize| {
        let whole = (i * 7919 % 2003) as f64 - 1001.0;
        (whole * (1 + i / 64 % 7) as f64 / 4096.0) as f32
    };
    (0..count).map(value).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = |place: usize| u8::from_str_radix(&hex[place..place + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digits).collect()
}

fn matrix(book: CodeBook, is_nested: bool) -> QuantizedMatrix {
    QuantizedMatrix {
        of: Quantization { book, is_nested },
        is_conv1d: false,
    }
}

/// The codes of a matrix in its order, of those that lie in halves of blocks.
fn codes(array: &[u8], count: usize) -> Vec<u8> {
    let mut codes: Vec<u8> = Vec::new();
    for block in array.chunks(BLOCK / 2) {
        codes.extend(block.iter().map(|byte| byte & 15));
        codes.extend(block.iter().map(|byte| byte >> 4));
    }
    codes.truncate(count);
    codes
}

/// bitsandbytes 0.50's `quantize_4bit` of the same values; the second matrix has rows that are no whole
/// blocks, and a block that is not full.
#[test]
fn codes_of_4_bits_are_those_of_bitsandbytes() {
    let nf4 = "0feeddcba9876543221100ffeedccba9765433211100feeddcba9876543221100ffeeddcba9765433211100feeedcba9\
               876543221100ffeeddcba9865443211100feeedcba9876543221100ffeeddcba9875543211100feeedcba98765432211\
               10ffeeddcba9876543221100feeedcbb9876543321110ffeeddcba9876543221";
    let fp4 = "b32225547619eeccddaabb332225447619efcddaaabb32225547619eeccddaabb332225447619efcddaaabb332255476\
               69eefcddaabb332225547619efcddaaabb33225547660eefcddaabb332225547619efcddaaabb33225544661eefcddaa\
               bb332225547619efccdaaabb332255446619efcddaaab332225547619efccdaa";
    let factors = [0.244_384_77f32, 0.481_933_6, 0.717_773_44, 0.970_703_1];
    let flat = "0feeddcba9876543221100ffeedccba9765433211100feeddcba9876543221100ffeeddcba9765433211100feeedcba9876543221100ffeedd\
                cba986";
    for (book, dims, expected) in [
        (CodeBook::Nf4, [2, 128], nf4),
        (CodeBook::Fp4, [2, 128], fp4),
        (CodeBook::Nf4, [3, 40], flat),
    ] {
        let count = dims[0] * dims[1];
        let arrays = matrix(book, false).quantize(&values(count), &dims);
        // The first value of a byte is in its upper half there.
        let packed = bytes(&expected.replace(char::is_whitespace, ""));
        let expected: Vec<u8> = packed
            .iter()
            .flat_map(|byte| [byte >> 4, byte & 15])
            .collect();
        assert_eq!(codes(&arrays[0], count), expected[..count], "{book:?}");
        let found = floats_of(&arrays[1]);
        assert_eq!(found, factors[..count.div_ceil(64)], "{book:?}");
    }
}

/// Its `quantize_4bit` with `compress_statistics` of 260 blocks: the mean of factors, their codes and
/// these codes' factors, which torch's order of summation may move by the last bit.
#[test]
fn factors_in_8_bits_are_those_of_bitsandbytes() {
    let expected = "02182f9ad0e6fb0119308ccee6fe0218309fd0e5fc02193062cee7fd011930a1cee4fc0219306ccfe7fd0119309fcee5fe02192f90d0e6\
        fc0219306ccee6ff02182fa1cfe5fb02193062cee7fe0218309fcfe5fd02192f62cfe7fd0119309acee5fd02192f97d0e6fb01193090ce\
        e6fe02182f9fd0e6fb0219306ccee6ff021830a1cfe4fc02193069cfe7fd0118309fcfe5fd02192f8ccfe7fc0119309acde5ff02192f97\
        d0e6fb02193065cee7fe0218309fd0e5fb02193060cee7fd021830a1cee4fd02192f69d0e7fd01193093cee6fe02192f8cd0e6fc021930\
        6ecde6ff02182fa0cfe6fc02193065cfe7fe011830a0cfe5fd02192f60cfe7fd0118309ccfe6ff01";
    let dims = [130, 128];
    let arrays = matrix(CodeBook::Nf4, true).quantize(&values(130 * 128), &dims);
    assert_eq!(arrays[1], bytes(expected));
    let beside = floats_of(&arrays[2]);
    assert_eq!(beside[1..NESTED_START], dynamic());
    let found = [&beside[..1], &beside[NESTED_START..]].concat();
    for (found, expected) in found.iter().zip([0.965_300_1f32, 0.745_393_3, 0.731_721_4]) {
        assert!((found - expected).abs() <= 1e-7, "{found}, {expected}");
    }
    let values = matrix(CodeBook::Nf4, true).dequantize(&arrays, &dims);
    let sum: f64 = values.iter().map(|value| f64::from(value.abs())).sum();
    assert!((sum - 8_127.358_677).abs() < 2e-3, "{sum}");
}

/// Its `int8_vectorwise_quant` of the values in float16.
#[test]
fn codes_of_8_bits_are_those_of_bitsandbytes() {
    let expected = "8173685c5044382d211509fdf2e6dacec2b7ab9f93877a6e62564a3f33271b0f04f8ece0d4c9bdb1d1cbc5bf3c36302a241e18110b05ff\
        f9f3ede7e1dad4cec8847f73675a4e4236291d1105f9ece0d4";
    let arrays = matrix(CodeBook::Int8, false).quantize(&values(80), &[2, 40]);
    assert_eq!(arrays[0], bytes(expected));
    let factors = [0.244_384_77f32, 0.471_679_7].map(|most| most * (1.0 / 127.0));
    assert_eq!(floats_of(&arrays[1]), factors);
}

/// A matrix that lies the other way round is quantized as its transpose, and comes back as it lay.
#[test]
fn a_conv1d_is_quantized_by_its_outputs() {
    let (rows, columns) = (80, 96);
    let plain = values(rows * columns);
    let turned: Vec<f32> = (0..rows * columns)
        .map(|place| plain[place % rows * columns + place / rows])
        .collect();
    for book in [CodeBook::Nf4, CodeBook::Int8] {
        let own = matrix(book, false);
        let conv1d = QuantizedMatrix {
            is_conv1d: true,
            ..own
        };
        let arrays = own.quantize(&plain, &[rows, columns]);
        assert_eq!(arrays, conv1d.quantize(&turned, &[columns, rows]));
        let (back, plain) = (
            conv1d.dequantize(&arrays, &[columns, rows]),
            own.dequantize(&arrays, &[rows, columns]),
        );
        assert!((0..back.len()).all(|i| back[i] == plain[i % rows * columns + i / rows]));
    }
}

/// Zeros stay zeros.
#[test]
fn zeros_have_a_code() {
    for book in [CodeBook::Nf4, CodeBook::Fp4, CodeBook::Int8] {
        let own = matrix(book, book == CodeBook::Nf4);
        let arrays = own.quantize(&[0.0; 128], &[2, 64]);
        assert_eq!(own.dequantize(&arrays, &[2, 64]), [0.0; 128]);
    }
}

/// The table of nested factors and that of 8-bit moments are one, up to what torch rounds.
#[test]
fn nested_factors_have_the_values_of_8_bit_moments() {
    let computed = xtrain_graphs::op::DynamicMap::Signed.entries();
    for (ours, computed) in dynamic().into_iter().zip(computed) {
        let bar = 1.2e-7 * computed.abs();
        assert!((ours - computed).abs() <= bar, "{ours} and {computed}");
    }
}
