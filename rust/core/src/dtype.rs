//! Element types of a cache, and the bytes that a row of elements takes with its block scales.
//! Which rows a layer keeps is in `cell.rs`.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// The element type of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit IEEE float.
    Float32,
    /// 16-bit IEEE float.
    Float16,
    /// 16-bit brain float.
    Bfloat16,
    /// 8-bit float, 4 exponent bits, one scale a tensor (no bytes a slot).
    Fp8E4m3,
    /// 8-bit float, 5 exponent bits, one scale a tensor (no bytes a slot).
    Fp8E5m2,
    /// OCP MX: 8-bit floats, one E8M0 scale byte for each 32.
    Mxfp8,
    /// OCP MX: 4-bit floats, one E8M0 scale byte for each 32.
    Mxfp4,
    /// NVIDIA: 4-bit floats, one FP8 scale byte for each 16.
    Nvfp4,
    /// SGLang's `fp4_mx_block16`: 4-bit floats, one scale byte for each 16.
    Fp4MxBlock16,
    /// 8-bit integers, one 32-bit scale for each head's row.
    Int8,
    /// 8-bit floats, one 32-bit scale for each head's row.
    Fp8PerTokenHead,
    /// 4-bit integers, one 32-bit word of scale and zero point for each head's row.
    Int4,
}

/// How the elements of a dtype are stored.
struct Storage {
    /// The name that users write, first, then what else the field calls it.
    names: &'static [&'static str],
    /// Bits of one element.
    bits: u64,
    /// What is stored beside the elements of a row.
    scales: Scales,
}

/// The scales of a row.
#[derive(Clone, Copy)]
enum Scales {
    /// None, or one a tensor.
    None,
    /// One byte for each block of so many elements.
    Blocks(u64),
    /// So many bytes a row.
    Row(u64),
}

impl Dtype {
    /// Every dtype, in the order of the documentation.
    pub const ALL: [Self; 12] = [
        Self::Float32,
        Self::Float16,
        Self::Bfloat16,
        Self::Fp8E4m3,
        Self::Fp8E5m2,
        Self::Mxfp8,
        Self::Mxfp4,
        Self::Nvfp4,
        Self::Fp4MxBlock16,
        Self::Int8,
        Self::Fp8PerTokenHead,
        Self::Int4,
    ];

    /// Sources: OCP Microscaling Formats 1.0, section 5 (blocks of 32, E8M0); SGLang 0.5.23, `--kv-cache-dtype`
    /// (`fp4_mx_block16`, `nvfp4` and `mxfp8` priced by its `pool_configurator`); vLLM 0.33.0, `TritonAttentionBackend`
    /// (`…_per_token_head`: a 32-bit scale after the data of each head, on the key's side and on the value's).
    fn storage(self) -> Storage {
        match self {
            Self::Float32 => Storage { names: &["float32", "float"], bits: 32, scales: Scales::None },
            Self::Float16 => Storage { names: &["float16", "half"], bits: 16, scales: Scales::None },
            Self::Bfloat16 => Storage { names: &["bfloat16", "bf16"], bits: 16, scales: Scales::None },
            Self::Fp8E4m3 => Storage {
                names: &["fp8_e4m3", "fp8", "float8_e4m3fn", "float8_e4m3fnuz"],
                bits: 8,
                scales: Scales::None,
            },
            Self::Fp8E5m2 => {
                Storage { names: &["fp8_e5m2", "float8_e5m2", "float8_e5m2fnuz"], bits: 8, scales: Scales::None }
            }
            Self::Mxfp8 => Storage { names: &["mxfp8"], bits: 8, scales: Scales::Blocks(32) },
            Self::Mxfp4 => Storage { names: &["mxfp4"], bits: 4, scales: Scales::Blocks(32) },
            Self::Nvfp4 => Storage { names: &["nvfp4", "fp4_e2m1"], bits: 4, scales: Scales::Blocks(16) },
            Self::Fp4MxBlock16 => Storage { names: &["fp4_mx_block16"], bits: 4, scales: Scales::Blocks(16) },
            Self::Int8 => Storage { names: &["int8", "int8_per_token_head"], bits: 8, scales: Scales::Row(4) },
            Self::Fp8PerTokenHead => Storage { names: &["fp8_per_token_head"], bits: 8, scales: Scales::Row(4) },
            Self::Int4 => Storage { names: &["int4", "int4_per_token_head"], bits: 4, scales: Scales::Row(4) },
        }
    }

    /// The name that users write: `bfloat16`, `fp8_e4m3`, …
    #[must_use]
    pub fn name(self) -> &'static str {
        self.storage().names.first().copied().unwrap_or_default()
    }

    /// Whether each row has scales as a whole.
    pub(crate) fn scales_rows(self) -> bool {
        matches!(self.storage().scales, Scales::Row(_))
    }

    /// Bytes of the data and of the scales of a row of `elements`: one head's key or value, or one latent.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for `kv_cache_dtype` when a block of scales would not end with the row: kernels scale
    /// whole blocks only.
    pub fn row_bytes(self, elements: u32) -> Result<(u64, u64)> {
        let Storage { bits, scales, .. } = self.storage();
        let elements = u64::from(elements);
        let data = elements.saturating_mul(bits).div_ceil(8);
        match scales {
            Scales::None => Ok((data, 0)),
            Scales::Row(bytes) => Ok((data, bytes)),
            Scales::Blocks(block) if elements.is_multiple_of(block) => Ok((data, elements.div_ceil(block))),
            Scales::Blocks(block) => Err(Error::invalid(
                "kv_cache_dtype",
                &self,
                format!("its blocks of {block} elements do not divide a row of {elements}; pass bfloat16 or fp8_e4m3"),
            )),
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dtype {
    type Err = Error;

    /// Reads the names of SGLang, vLLM and torch (`torch.bfloat16` too).
    fn from_str(text: &str) -> Result<Self> {
        let name = text.strip_prefix("torch.").unwrap_or(text);
        Self::ALL.into_iter().find(|dtype| dtype.storage().names.contains(&name)).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|dtype| dtype.name()).collect();
            Error::invalid("kv_cache_dtype", &text, format!("pass auto or one of {}", known.join(", ")))
        })
    }
}
