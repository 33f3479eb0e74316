//! Where `struct iov_iter` keeps its kind, from BTF.

use std::collections::BTreeSet;

use super::btf::Btf;
use super::{IterLayout, Kind, PlanError};

/// Before 5.14 the kind was a bit mask with the direction in bit 0 and `ITER_BVEC_FLAG_NO_REF` in bit 1.
const MASK_FLAGS: u8 = 3;
/// More kinds than any kernel has, or will soon; their numbers fit `iotrace_common::iter::KIND_BITS`.
const KINDS: usize = 32;

/// Where the kind is and what the kinds are called.
pub fn iter(btf: &Btf<'_>) -> Result<IterLayout, PlanError> {
    let (kind_offset, ignored_bits) = match btf.offset_of("iov_iter", "iter_type") {
        Some(offset) => (offset, 0),
        None => {
            let offset = btf.offset_of("iov_iter", "type");
            (offset.ok_or(PlanError::NoLayout { what: "struct iov_iter with its iter_type" })?, MASK_FLAGS)
        }
    };
    let members = btf.enumeration("iter_type").filter(|members| members.len() <= KINDS);
    let members = members.ok_or(PlanError::NoLayout { what: "enum iter_type" })?;
    let mut kinds = members
        .into_iter()
        .map(|(name, value)| match u8::try_from(value) {
            Ok(value) if value & ignored_bits == 0 => {
                let name = name.strip_prefix("ITER_").unwrap_or(name).to_ascii_lowercase();
                Ok(Kind { name, value })
            }
            _ => Err(PlanError::OddKind { name: name.to_owned(), value }),
        })
        .collect::<Result<Vec<_>, _>>()?;
    kinds.sort_by_key(|kind| kind.value);
    let names: BTreeSet<_> = kinds.iter().map(|kind| &kind.name).collect();
    if names.len() < kinds.len() || !kinds.is_sorted_by(|one, next| one.value < next.value) {
        return Err(PlanError::NoLayout { what: "enum iter_type with distinct members" });
    }
    Ok(IterLayout { kind_offset, kinds, ignored_bits })
}
