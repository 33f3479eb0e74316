//! Which sites can do without a trap.

use std::collections::BTreeMap;

use iotrace_common::{
    import::Path,
    site::{CONSTANT, Value},
};

use super::kallsyms::{Symbol, Symbols};
use super::landing::Landings;
use super::run_x86_64::{Body, Run};
use super::text::Reader;
use super::{Arguments, Mechanism, Plan, Site};

/// The position of `vlen` among the arguments of `readv(2)` and its kin.
const VLEN: u8 = 2;

/// Makes jumps of traps.
pub fn optimize(
    plan: &mut Plan,
    reader: &Reader<'_>,
    symbols: &Symbols<'_>,
    landings: &Landings,
    vectors: bool,
) {
    let sites = plan.targets.iter_mut().flat_map(|target| &mut target.sites);
    let traps = sites.filter_map(|site| match site.mechanism {
        Mechanism::Trap { after } if site.module.is_none() => Some((site, after)),
        _ => None,
    });
    // Function by function: one is decoded at a time.
    let mut functions: BTreeMap<u64, Vec<(&mut Site, u64)>> = BTreeMap::new();
    for (site, after) in traps {
        functions.entry(site.address.wrapping_sub(site.offset)).or_default().push((site, after));
    }
    for (address, sites) in functions {
        let Some((function, end)) = symbols.enclosing(address) else { continue };
        let Some(body) = body(reader, symbols, landings, function, end) else { continue };
        for (site, after) in sites {
            if let Some(mechanism) = jump(&body, site, after, vectors) {
                site.mechanism = mechanism;
            }
        }
    }
}

fn body(
    reader: &Reader<'_>,
    symbols: &Symbols<'_>,
    landings: &Landings,
    function: Symbol<'_>,
    end: u64,
) -> Option<Body> {
    // The part that is seldom run jumps back into the middle of the function, and is jumped into.
    let other = match function.name.strip_suffix(".cold") {
        Some(whole) => whole.to_owned(),
        None => format!("{}.cold", function.name),
    };
    let others = symbols.named(&other).filter(|symbol| symbol.module.is_none());
    let others: Option<Vec<_>> = others
        .map(|symbol| {
            let (_, end) = symbols.enclosing(symbol.address)?;
            Some((symbol.address, reader.bytes(symbol.address, end)?))
        })
        .collect();
    let is_thunk = |to| {
        let thunk = |(symbol, _): (Symbol<'_>, u64)| symbol.name.starts_with("__x86_indirect");
        symbols.enclosing(to).is_some_and(thunk)
    };
    let bytes = reader.bytes(function.address, end)?;
    let is_detour = |to| reader.is_detour(function.address, to);
    Body::read((function.address, bytes), &others?, landings, is_detour, is_thunk)
}

fn jump(body: &Body, site: &Site, after: u64, vectors: bool) -> Option<Mechanism> {
    match site.arguments {
        Arguments::Import { segments, fast, path, by_syscall, .. } => {
            let Run { before, kept: [fast, count], returns_alone } =
                body.run(site.address, [fast, segments], false)?;
            // Of these calls the system call's own argument is what is imported.
            let is_vector = vectors && by_syscall && matches!(path, Path::Readv | Path::Writev);
            let count = if is_vector { Some(Value::argument(VLEN)) } else { count };
            match (fast, count) {
                (Some(iter), Some(count))
                    if returns_alone && (!is_vector || iter.mode == CONSTANT && iter.add > 0) =>
                {
                    Some(Mechanism::Jump { before: None, after, iter, count })
                }
                _ => {
                    let (before, [iter, count]) = before?;
                    Some(Mechanism::Jump { before: Some(before), after, iter, count })
                }
            }
        }
        Arguments::Iter { iter, bytes, .. } => {
            let (before, [iter, count]) = body.run(site.address, [iter, bytes], true)?.before?;
            Some(Mechanism::Jump { before: Some(before), after, iter, count })
        }
    }
}
