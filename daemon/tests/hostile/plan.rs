//! The plan of whole kernels that are not quite right.

use iotrace::plan::btf::Btf;
use iotrace::plan::kallsyms::Symbols;
use iotrace::plan::kcore::Segments;
use iotrace::plan::landing::{Landings, Table};
use iotrace::plan::text::{Reader, Text};
use iotrace::plan::{Mechanism, Plan, Site, plan};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::fixture::{self, CORE, MODULE};
use crate::meter::bounded;
use crate::mutate::{Change, LONGS, changed, changes};
use crate::text::Oracle;
use crate::{cases, kallsyms};

/// The text of the kernel proper and of the module starts here in [`Kernel::kcore`].
const PLACES: [usize; 2] = [0x1000, 0x3000];
/// Module text ends with the page behind that of the last function.
const MODULE_SIZE: u64 = 0x2000;

/// The files that the planner is given.
#[derive(Clone)]
struct Kernel {
    kallsyms: Vec<u8>,
    btf: Vec<u8>,
    kcore: Vec<u8>,
}

fn sound() -> Kernel {
    let images = fixture::images();
    let [core, module] = &images;
    let mut kcore = fixture::core_file(&[
        (1, MODULE, MODULE_SIZE, PLACES[1] as u64),
        (1, CORE, core.bytes.len() as u64, PLACES[0] as u64),
    ]);
    for (place, image) in PLACES.into_iter().zip([core, module]) {
        kcore.resize(place, 0);
        kcore.extend(&image.bytes);
    }
    kcore.resize(PLACES[1] + MODULE_SIZE as usize, 0xcc);
    Kernel { kallsyms: fixture::kallsyms(&images).into_bytes(), btf: fixture::btf(), kcore }
}

/// Plans and checks that each place to be probed is what it is taken for. `None` if the files are refused.
fn planned(kernel: &Kernel) -> Option<Plan> {
    let symbols = Symbols::parse(&kernel.kallsyms).ok()?;
    let btf = Btf::parse(&kernel.btf).ok()?;
    let segments = Segments::parse(&kernel.kcore).ok()?;
    let core = [(None, symbols.core_text()?)];
    let modules = symbols.module_text();
    let modules = modules.iter().map(|(name, range)| (Some(name.as_str()), range.clone()));
    let text: Vec<_> = core
        .into_iter()
        .chain(modules)
        .filter_map(|(module, range)| {
            let length = usize::try_from(range.end - range.start).ok()?;
            let start = usize::try_from(segments.locate(range.clone())?).ok()?;
            let bytes = kernel.kcore.get(start..start.checked_add(length)?)?;
            Some(Text { address: range.start, bytes, module })
        })
        .collect();
    let size: usize = text.iter().map(|text| text.bytes.len()).sum();
    // What is asked of the types for each name is on top.
    let plan = bounded(64 * size + (64 << 10), || plan(&symbols, &btf, &text)).ok()?;
    confirm(&plan, &symbols, &text);
    confirm_jumps(&plan, &symbols, &text, &btf, kernel);
    Some(plan)
}

/// How many sites of the kernel proper need no trap.
fn jumps(kernel: &Kernel) -> usize {
    let symbols = Symbols::parse(&kernel.kallsyms).unwrap();
    let btf = Btf::parse(&kernel.btf).unwrap();
    let bytes = &kernel.kcore[PLACES[0]..PLACES[1]];
    let text = [Text { address: CORE, bytes, module: None }];
    let mut plan = plan(&symbols, &btf, &text).unwrap();
    let none = Table { address: CORE, bytes: &[] };
    plan.optimize(&symbols, &text, &Landings::read(&btf, none, none).unwrap(), true);
    let sites = plan.targets.iter().flat_map(|target| &target.sites);
    sites.filter(|site| matches!(site.mechanism, Mechanism::Jump { .. })).count()
}

/// Replaces traps by jumps, with tables that are any bytes at all, and with none.
fn confirm_jumps(plan: &Plan, symbols: &Symbols<'_>, text: &[Text<'_>], btf: &Btf<'_>, kernel: &Kernel) {
    let any = Table { address: CORE, bytes: &kernel.kcore };
    let none = Table { address: CORE, bytes: &[] };
    let size: usize = text.iter().map(|text| text.bytes.len()).sum();
    for (jumps, fixups) in [(none, none), (any, none), (none, any)] {
        let Some(landings) = Landings::read(btf, jumps, fixups) else { continue };
        let mut optimized = plan.clone();
        bounded(256 * size + (64 << 10), || optimized.optimize(symbols, text, &landings, true));
        let sites = |plan: &Plan| -> Vec<Site> {
            plan.targets.iter().flat_map(|target| target.sites.clone()).collect()
        };
        for (was, is) in sites(plan).iter().zip(&sites(&optimized)) {
            match (&was.mechanism, &is.mechanism) {
                (Mechanism::Trap { after: was }, Mechanism::Jump { before, after, .. }) => {
                    assert_eq!(was, after);
                    let function = is.address - is.offset;
                    assert!(before.is_none_or(|at| (function..=is.address - 5).contains(&at)));
                    // Not where something leads to.
                    assert!(before.is_none_or(|at| !landings.is_key(at)));
                }
                (was, is) => assert_eq!(was, is),
            }
        }
    }
}

fn confirm(plan: &Plan, symbols: &Symbols<'_>, text: &[Text<'_>]) {
    let oracle = Oracle::new(symbols, text);
    let reader = Reader::new(symbols, text);
    let mut trapped = Vec::new();
    for target in &plan.targets {
        for site in &target.sites {
            let (function, _) = symbols.enclosing(site.address).unwrap();
            match site.mechanism {
                Mechanism::Unavailable { .. } => {}
                Mechanism::Trap { after } => {
                    let mut goals = symbols.named(&target.symbol).filter(|symbol| symbol.module.is_none());
                    oracle.confirm(site.address, goals.next().unwrap().address, Some(after));
                    assert!(goals.next().is_none());
                    assert_eq!(site.offset, site.address - function.address);
                    trapped.push(site.address);
                }
                // The function as a whole.
                _ => {
                    assert_eq!(site.address, function.address);
                    assert_eq!(site.offset, 0);
                    assert!(reader.has_ftrace_entry(site.address));
                }
            }
        }
    }
    let found = trapped.len();
    trapped.sort_unstable();
    trapped.dedup();
    assert_eq!(trapped.len(), found, "no two probes on one call");
    let kinds = &plan.iter.kinds;
    assert!(kinds.len() <= 32 && kinds.is_sorted_by(|one, next| one.value < next.value));
}

#[test]
fn the_sound_kernel_has_a_plan() {
    let plan = planned(&sound()).unwrap();
    let sites = plan.targets.iter().flat_map(|target| &target.sites);
    let traps = sites.filter(|site| matches!(site.mechanism, Mechanism::Trap { .. }));
    assert!(traps.count() >= 10);
    // What is checked of jumps is checked of some.
    assert_eq!(jumps(&sound()), 2);
}

#[test]
fn text_cut_off_anywhere_has_a_plan_or_none() {
    let sound = sound();
    let [core, module] = fixture::images().map(|image| image.bytes.len());
    for end in (PLACES[0]..PLACES[0] + core).step_by(3).chain(PLACES[1]..PLACES[1] + module) {
        let mut cut = sound.clone();
        cut.kcore.truncate(end);
        planned(&cut);
        // The same length, but nothing where it ends.
        cut.kcore.resize(sound.kcore.len(), 0);
        planned(&cut);
    }
}

/// A change to the lines of kallsyms that leaves them readable.
#[derive(Clone, Debug)]
enum LineChange {
    Drop(Index),
    Repeat(Index),
    Swap(Index, Index),
    Address(Index, u64),
    Move(Index, i64),
    Rename(Index, Index),
    Suffix(Index, &'static str),
}

fn line_changes() -> impl Strategy<Value = Vec<LineChange>> {
    let line = any::<Index>;
    let one = prop_oneof![
        line().prop_map(LineChange::Drop),
        line().prop_map(LineChange::Repeat),
        (line(), line()).prop_map(|(one, other)| LineChange::Swap(one, other)),
        (line(), prop::sample::select(LONGS.to_vec())).prop_map(|(at, to)| LineChange::Address(at, to)),
        (line(), -40i64..40).prop_map(|(at, by)| LineChange::Move(at, by)),
        (line(), line()).prop_map(|(one, other)| LineChange::Rename(one, other)),
        (line(), prop::sample::select(vec![".cold", ".", "\t[tun]", "\t[tap]", "\t[]", "\t[bpf]"]))
            .prop_map(|(at, suffix)| LineChange::Suffix(at, suffix)),
    ];
    prop::collection::vec(one, 0..6)
}

fn lines_changed(file: &[u8], changes: &[LineChange]) -> Vec<u8> {
    let text = String::from_utf8(file.to_vec()).unwrap();
    let mut lines: Vec<(u64, String)> = text
        .lines()
        .map(|line| (u64::from_str_radix(&line[..16], 16).unwrap(), line[16..].to_owned()))
        .collect();
    for change in changes {
        let size = lines.len();
        match change {
            LineChange::Drop(at) if size > 1 => drop(lines.remove(at.index(size))),
            LineChange::Drop(_) => {}
            LineChange::Repeat(at) => lines.push(lines[at.index(size)].clone()),
            LineChange::Swap(one, other) => lines.swap(one.index(size), other.index(size)),
            LineChange::Address(at, to) => lines[at.index(size)].0 = *to,
            LineChange::Move(at, by) => {
                let (address, _) = &mut lines[at.index(size)];
                *address = address.wrapping_add_signed(*by);
            }
            LineChange::Rename(one, other) => lines[one.index(size)].1 = lines[other.index(size)].1.clone(),
            LineChange::Suffix(at, suffix) => lines[at.index(size)].1.push_str(suffix),
        }
    }
    lines.iter().flat_map(|(address, rest)| format!("{address:016x}{rest}\n").into_bytes()).collect()
}

/// Changes to a part of a file that leave its length.
fn part_changed(file: &mut [u8], changes: &[Change]) {
    let new = changed(file, changes);
    let length = file.len().min(new.len());
    file[..length].copy_from_slice(&new[..length]);
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn no_change_to_text_and_symbols_leads_a_probe_astray(
        text in prop::collection::vec(changes(), 0..3),
        lines in line_changes(),
    ) {
        let mut kernel = sound();
        for changes in text {
            part_changed(&mut kernel.kcore[PLACES[0]..PLACES[1]], &changes);
            part_changed(&mut kernel.kcore[PLACES[1]..][..0x80], &changes);
        }
        kernel.kallsyms = lines_changed(&kernel.kallsyms, &lines);
        planned(&kernel);
    }

    #[test]
    fn no_change_to_any_file_leads_a_probe_astray(
        symbols in prop::option::weighted(0.2, changes()),
        lines in line_changes(),
        btf in prop::option::of(changes()),
        core in prop::option::weighted(0.3, changes()),
    ) {
        let mut kernel = sound();
        kernel.kallsyms = lines_changed(&kernel.kallsyms, &lines);
        kernel.kallsyms = changed(&kernel.kallsyms, &symbols.unwrap_or_default());
        kernel.btf = changed(&kernel.btf, &btf.unwrap_or_default());
        kernel.kcore = changed(&kernel.kcore, &core.unwrap_or_default());
        kallsyms::check(&kernel.kallsyms);
        planned(&kernel);
    }

    #[test]
    fn any_symbols_over_the_text_have_a_plan_or_none(lines in kallsyms::lines()) {
        let mut kernel = sound();
        kernel.kallsyms = lines.into_bytes();
        planned(&kernel);
    }
}
