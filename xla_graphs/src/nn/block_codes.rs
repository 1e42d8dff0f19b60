//! Numbers in 8 bits: blocks of 256 with a scale each, and a code for every element
//! ([`BlockCodes`]), as 8-bit optimizers keep their moments.
//!
//! A map's entries are the middles of cells that divide decades evenly: of the decade `10^-d` to
//! `10^(1-d)` into `2^e` cells, one power of two more for each decade up. Counted from 1 (of one sign),
//! entry n is therefore in decade `e = floor(log2 n)`, at `1 + 9 m` parts of the decade's beginning, where
//! `1 + m = (n + 1/2) / 2^e`: codes and values come from each other by a few comparisons and exact factors,
//! without a table. An entry of 1 is the last.
//!
//! On the CPU the codes of an update are steps of its pass (`passes/one_pass`).

use crate::dtype::DType;
use crate::error::Result;
use crate::op::{BlockCodes, Comparison, Composite, DynamicMap, F64, Op, PassStep};
use crate::ops::rule::{Inferred, arity, expect};
use crate::shape::Shape;
use crate::trace::Tensor;

/// Elements of a block.
pub const BLOCK: usize = 256;

/// A decade of a map.
struct Decade {
    /// Its entries are nearest to numbers from here on.
    from: f64,
    /// The number of its first entry, counted from 1; it has as many entries.
    first: f64,
    /// What makes numbers of it numbers from 1 to 10.
    factor: f64,
}

impl DynamicMap {
    /// The exponents of the first decade and of the one that 1 is the first entry of.
    fn exponents(self) -> [i32; 2] {
        match self {
            DynamicMap::Signed => [0, 7],
            DynamicMap::Unsigned => [1, 8],
        }
    }

    /// What the number 0 has for an entry's number.
    fn zero(self) -> f64 {
        match self {
            DynamicMap::Signed => 0.0,
            DynamicMap::Unsigned => 1.0,
        }
    }

    /// The entry of a number from 1, 0 for that of zero.
    fn entry(self, number: f64) -> f64 {
        let [_, last] = self.exponents();
        if number <= self.zero() {
            return 0.0;
        }
        let exponent = number.log2().floor() as i32;
        let part = (number + 0.5) / 2f64.powi(exponent);
        let value = (9.0 * part - 8.0) / 10f64.powi(last - exponent);
        value.min(1.0)
    }

    /// In rising order.
    fn decades(self) -> impl Iterator<Item = Decade> {
        let [first, last] = self.exponents();
        (first..=last).map(move |exponent| {
            let number = 2f64.powi(exponent);
            Decade {
                from: (self.entry(number - 1.0) + self.entry(number)) / 2.0,
                first: number,
                factor: 10f64.powi(last - exponent),
            }
        })
    }

    /// The 256 entries, in the order of codes.
    pub fn entries(self) -> Vec<f32> {
        let entry = |code: i32| match self {
            DynamicMap::Signed => {
                let number = f64::from(code - 127);
                self.entry(number.abs()).copysign(number)
            }
            DynamicMap::Unsigned => self.entry(f64::from(code + 1)),
        };
        (0..256).map(|code| entry(code) as f32).collect()
    }
}

/// The dimensions of the scales of an array: those of the array as long as what is left of it divides
/// into blocks, then the blocks of the rest; all blocks where none does. What shards the array along one of
/// these shards its scales.
pub fn block_dims(dims: &[usize]) -> Vec<usize> {
    let rest = |from: usize| dims[from..].iter().product::<usize>();
    let last = (0..dims.len())
        .rev()
        .find(|from| rest(*from).is_multiple_of(BLOCK));
    match last {
        Some(last) => [&dims[..last], &[rest(last) / BLOCK]].concat(),
        None => vec![rest(0).div_ceil(BLOCK)],
    }
}

pub(crate) fn infer(part: &BlockCodes, operands: &[&Shape]) -> Inferred {
    let fits = |array: &Shape, blocks: &[usize]| {
        let count = blocks.iter().product::<usize>();
        if array.elements().div_ceil(BLOCK) == count {
            Ok(())
        } else {
            Err(format!("{array} has no {count} blocks of {BLOCK}"))
        }
    };
    let x = *operands.first().ok_or("takes an array")?;
    match part {
        BlockCodes::Scales { dims, .. } => {
            arity(operands, 1)?;
            expect("the array", x, DType::F32, &x.dims)?;
            fits(x, dims)?;
            Ok(Shape::new(DType::F32, &dims[..]))
        }
        BlockCodes::Decode(_) | BlockCodes::Encode(_) => {
            arity(operands, 2)?;
            let (from, to) = match part {
                BlockCodes::Decode(_) => (DType::U8, DType::F32),
                _ => (DType::F32, DType::U8),
            };
            expect("the array", x, from, &x.dims)?;
            expect("scales", operands[1], DType::F32, &operands[1].dims)?;
            fits(x, &operands[1].dims)?;
            Ok(x.with_dtype(to))
        }
    }
}

/// `is_step`: it becomes a step of a pass of the CPU plugin's.
pub(crate) fn expand(part: &BlockCodes, x: &[Tensor], is_step: bool) -> Result<Tensor> {
    if is_step {
        let operands: Vec<&Tensor> = x.iter().collect();
        return x[0].trace().record(
            Op::PassStep(Box::new(PassStep::Codes(part.clone()))),
            &operands,
        );
    }
    match part {
        BlockCodes::Decode(map) => decode(*map, &x[0])?.mul(&per_element(&x[1], x[0].dims())?),
        BlockCodes::Scales { dims, floor } => {
            let count = dims.iter().product::<usize>();
            let (blocks, padding) = ([count, BLOCK], count * BLOCK - x[0].shape().elements());
            let mut all = x[0].abs()?;
            if padding > 0 {
                let flat = all.reshape(&[all.shape().elements()])?;
                all = flat.pad(&[0], &[padding])?;
            }
            let largest = all.reshape(&blocks)?.max(&[1])?.reshape(dims)?;
            largest.max_scalar(floor.get())
        }
        BlockCodes::Encode(map) => {
            // A block of zeros has any codes.
            let scales = x[1].max_scalar(f64::from(f32::MIN_POSITIVE))?;
            encode(*map, &x[0].div(&per_element(&scales, x[0].dims())?)?)
        }
    }
}

/// The scale of each element of an array of these dimensions.
fn per_element(scales: &Tensor, dims: &[usize]) -> Result<Tensor> {
    let (count, elements) = (scales.shape().elements(), dims.iter().product::<usize>());
    let all = scales
        .reshape(&[count])?
        .broadcast_in(&[count, BLOCK], &[0])?;
    if count * BLOCK == elements {
        return all.reshape(dims);
    }
    let flat = all.reshape(&[count * BLOCK])?;
    flat.slice(&[0], &[elements])?.reshape(dims)
}

/// Two numbers of each element's decade: that of the decade's first entry, and its factor. `from` is where a decade
/// begins among the elements; those before the first decade have `below`.
fn of_decades(
    map: DynamicMap,
    x: &Tensor,
    below: [f64; 2],
    from: impl Fn(&Decade) -> f64,
) -> Result<[Tensor; 2]> {
    let trace = x.trace();
    let full = |value: f64| trace.full(value, x.shape());
    let [mut first, mut factor] = [full(below[0])?, full(below[1])?];
    for decade in map.decades() {
        let is_above = x.compare_scalar(Comparison::Ge, from(&decade))?;
        first = is_above.select(&full(decade.first)?, &first)?;
        factor = is_above.select(&full(decade.factor)?, &factor)?;
    }
    Ok([first, factor])
}

/// The entries of codes.
fn decode(map: DynamicMap, codes: &Tensor) -> Result<Tensor> {
    let codes = codes.convert(DType::F32)?;
    let (number, sign) = match map {
        DynamicMap::Signed => {
            let number = codes.add_scalar(-127.0)?;
            (number.abs()?, Some(number.sign()?))
        }
        DynamicMap::Unsigned => (codes.add_scalar(1.0)?, None),
    };
    let [first, factor] = of_decades(map, &number, [1.0, 1.0], |decade| decade.first)?;
    let part = number.add_scalar(0.5)?.div(&first)?;
    let value = part.mul_scalar(9.0)?.add_scalar(-8.0)?.div(&factor)?;
    let value = value.min_scalar(1.0)?;
    match sign {
        Some(sign) => value.mul(&sign),
        None => {
            let is_zero = number.compare_scalar(Comparison::Le, map.zero())?;
            is_zero.select(&codes, &value)
        }
    }
}

/// The codes of the entries nearest to numbers up to 1.
fn encode(map: DynamicMap, x: &Tensor) -> Result<Tensor> {
    let size = match map {
        DynamicMap::Signed => x.abs()?,
        DynamicMap::Unsigned => x.clone(),
    };
    let [first, factor] = of_decades(map, &size, [map.zero(), 0.0], |decade| decade.from)?;
    let part = size.mul(&factor)?.add_scalar(8.0)?.mul_scalar(1.0 / 9.0)?;
    let number = part.mul(&first)?.floor()?;
    // Between two decades the nearest may be in the one that a number is not in.
    let last = first.mul_scalar(2.0)?.add_scalar(-1.0)?;
    let number = number.minimum(&last)?.maximum(&first)?;
    let code = match map {
        DynamicMap::Signed => {
            // There is no -1.
            let below = number.min_scalar(127.0)?.neg()?;
            let is_negative = x.compare_scalar(Comparison::Lt, 0.0)?;
            is_negative.select(&below, &number)?.add_scalar(127.0)?
        }
        DynamicMap::Unsigned => number.add_scalar(-1.0)?,
    };
    code.convert(DType::U8)
}

impl Tensor {
    fn block_codes(&self, part: BlockCodes, scales: &[&Tensor]) -> Result<Tensor> {
        self.apply(Op::Composite(Composite::BlockCodes(part)), scales)
    }

    /// [`BlockCodes::Decode`]: f32 in this tensor's shape.
    ///
    /// # Errors
    /// If this is not u8, or there is no scale for each block.
    #[track_caller]
    pub fn decode_blocks(&self, scales: &Tensor, map: DynamicMap) -> Result<Tensor> {
        self.block_codes(BlockCodes::Decode(map), &[scales])
    }

    /// [`BlockCodes::Scales`]: f32 of these dimensions, all at least `floor`.
    ///
    /// # Errors
    /// If this is not f32, or has not as many blocks.
    #[track_caller]
    pub fn block_scales(&self, dims: &[usize], floor: f64) -> Result<Tensor> {
        let (dims, floor) = (dims.to_vec(), F64::new(floor));
        self.block_codes(BlockCodes::Scales { dims, floor }, &[])
    }

    /// [`BlockCodes::Encode`]: u8 in this tensor's shape.
    ///
    /// # Errors
    /// If this is not f32, or there is no scale for each block.
    #[track_caller]
    pub fn encode_blocks(&self, scales: &Tensor, map: DynamicMap) -> Result<Tensor> {
        self.block_codes(BlockCodes::Encode(map), &[scales])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_the_middles_of_cells() {
        let signed = DynamicMap::Signed.entries();
        let unsigned = DynamicMap::Unsigned.entries();
        for entries in [&signed, &unsigned] {
            assert!(entries.windows(2).all(|pair| pair[0] < pair[1]));
            assert_eq!(entries[255], 1.0);
        }
        assert_eq!((signed[127], unsigned[0]), (0.0, 0.0));
        // Decade by decade, as the map is published: the middles of 2^i (signed) or 2^(i+1) equal cells
        // of 0.1 to 1, times 10^(i-6).
        for (entries, more, zero) in [(&signed, 0, 128), (&unsigned, 1, 1)] {
            let mut code = zero;
            for i in 0..7 {
                let cells = 1 << (i + more);
                for cell in 0..cells {
                    let middle = 0.1 + 0.9 * (f64::from(cell) + 0.5) / f64::from(cells);
                    let expected = middle * 10f64.powi(i - 6);
                    let off = (f64::from(entries[code]) / expected - 1.0).abs();
                    assert!(off < 1e-7, "{code}: {}, {expected}", entries[code]);
                    code += 1;
                }
            }
            assert_eq!(code, 255);
        }
        for code in 1..127 {
            assert_eq!(signed[127 - code], -signed[127 + code]);
        }
        // Numbers that bitsandbytes' documentation of the map begins and ends with.
        assert_eq!((signed[0], signed[128]), (-0.992_968_74, 5.5e-7));
    }

    #[test]
    fn scales_have_the_dimensions_that_blocks_leave() {
        for (dims, expected) in [
            (&[768, 2304][..], &[768, 9][..]),
            (&[1000, 96], &[375]),
            (&[1001, 96], &[376]),
            (&[4, 16, 64], &[4, 4]),
            (&[4233], &[17]),
            (&[4096], &[16]),
        ] {
            assert_eq!(block_dims(dims), expected, "{dims:?}");
        }
    }
}
