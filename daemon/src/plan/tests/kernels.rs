//! Against real kernels: `IOTRACE_KERNEL_DUMP=DIR cargo test -p iotrace plan:: -- --ignored`.
//!
//! DIR has a folder for each kernel with the files `kallsyms` (/proc/kallsyms), `btf` (/sys/kernel/btf/vmlinux) and
//! `text` (from `_stext` to `_etext`, through /proc/kcore).

use std::fs;
use std::path::PathBuf;

use super::super::arch_x86_64::{Flow, Function, JUMP, LONGEST};
use super::super::fixture::TRAMPOLINE;
use super::super::kallsyms::Symbols;
use super::super::target;
use super::*;

struct Dump {
    name: String,
    kallsyms: Vec<u8>,
    btf: Vec<u8>,
    text: Vec<u8>,
}

fn dumps() -> Vec<Dump> {
    let root = PathBuf::from(std::env::var("IOTRACE_KERNEL_DUMP").expect("IOTRACE_KERNEL_DUMP"));
    let mut dumps = Vec::new();
    for entry in fs::read_dir(root).unwrap() {
        let folder = entry.unwrap().path();
        if folder.join("text").exists() {
            let read = |name| fs::read(folder.join(name)).unwrap();
            let name = folder.file_name().unwrap().to_string_lossy().into_owned();
            dumps.push(Dump { name, kallsyms: read("kallsyms"), btf: read("btf"), text: read("text") });
        }
    }
    assert!(!dumps.is_empty());
    dumps
}

fn planned(dump: &Dump, text: &[u8]) -> Plan {
    let symbols = Symbols::parse(&dump.kallsyms).unwrap();
    let address = symbols.core_text().unwrap().start;
    let text = [Text { address, bytes: text, module: None }];
    plan(&symbols, &Btf::parse(&dump.btf).unwrap(), &text).unwrap()
}

#[test]
#[ignore = "needs dumps of kernels"]
fn a_plan_is_within_its_limits() {
    for dump in dumps() {
        let plan = planned(&dump, &dump.text);
        let sites: Vec<_> = plan.targets.iter().flat_map(|target| &target.sites).collect();
        let hot = sites.iter().filter(|site| site.rank == 0);
        assert!((20..=26).contains(&hot.count()), "{}", dump.name);
        let fentries = sites.iter().filter(|site| site.mechanism == Mechanism::Fentry);
        assert!((1..=8).contains(&fentries.count()), "{}", dump.name);
        let importers = &target(&plan, "import_iovec").sites;
        assert!(importers.iter().any(|site| site.symbol == "vfs_readv" && site.rank == 0), "{}", dump.name);
    }
}

#[test]
#[ignore = "needs dumps of kernels"]
fn the_table_agrees_with_the_types() {
    let mut checked = 0;
    for dump in dumps() {
        let btf = Btf::parse(&dump.btf).unwrap();
        for (symbol, table, types) in target::shapes(&btf) {
            assert_eq!(types, Some(table), "{} of {}", symbol, dump.name);
            checked += 1;
        }
    }
    assert!(checked > 0);
}

/// A second iotrace on every site: breakpoints on the calls, jumps behind them where the kernel can have them.
#[test]
#[ignore = "needs dumps of kernels"]
fn text_that_is_probed_gives_the_same_plan() {
    for dump in dumps() {
        let plan = planned(&dump, &dump.text);
        let symbols = Symbols::parse(&dump.kallsyms).unwrap();
        let start = symbols.core_text().unwrap().start;
        let mut text = dump.text.clone();
        let mut jumps = 0;
        for site in plan.targets.iter().flat_map(|target| &target.sites) {
            let Mechanism::Trap { after } = site.mechanism else { continue };
            let (call, behind) = ((site.address - start) as usize, (after - start) as usize);
            text[call] = 0xcc;
            let mut code = Function::new(after, &dump.text[behind..behind + 32]);
            let mut length = 0;
            let plain = loop {
                let found = code.at(length).unwrap();
                length += found.length;
                match found.flow {
                    Flow::Plain | Flow::Filler if length >= 5 => break true,
                    Flow::Plain | Flow::Filler => {}
                    _ => break false,
                }
            };
            text[behind] = 0xcc;
            if plain {
                text[behind] = 0xe9;
                let relative = (TRAMPOLINE.wrapping_sub(after + 5) as u32).to_le_bytes();
                text[behind + 1..behind + 5].copy_from_slice(&relative);
                jumps += 1;
            }
        }
        assert!(jumps > 40, "{}: {jumps}", dump.name);
        assert_eq!(planned(&dump, &text), plan, "{}", dump.name);
    }
}

/// As above, with jumps before the calls too, in every state that the kernel patches them through.
#[test]
#[ignore = "needs dumps of kernels"]
fn text_that_is_being_patched_gives_the_same_plan() {
    const STATES: u64 = 5;
    for dump in dumps() {
        let plan = planned(&dump, &dump.text);
        let symbols = Symbols::parse(&dump.kallsyms).unwrap();
        let start = symbols.core_text().unwrap().start;
        let mut random = 0x2545_f491_4f6c_dd1du64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        for _ in 0..10 {
            let (mut text, mut patched) = (dump.text.clone(), 0);
            for site in plan.targets.iter().flat_map(|target| &target.sites) {
                let Mechanism::Trap { .. } = site.mechanism else { continue };
                let function = (site.address - site.offset - start) as usize;
                let call = (site.address - start) as usize;
                let mut code = Function::new(start + function as u64, &dump.text[function..call]);
                let (mut offset, mut starts) = (0, vec![]);
                while let Some(found) = code.at(offset) {
                    starts.push(function + offset);
                    offset += found.length;
                }
                let fits: Vec<usize> =
                    starts.into_iter().filter(|at| (JUMP..=LONGEST).contains(&(call - at))).collect();
                let Some(&at) = fits.get(next() as usize % fits.len().max(1)) else { continue };
                let to = TRAMPOLINE + next() % (1 << 20);
                let relative = (to.wrapping_sub(start + (at + JUMP) as u64) as u32).to_le_bytes();
                let state = next() % STATES;
                if state > 0 {
                    text[at] = 0xcc;
                    patched += 1;
                }
                if state > 1 {
                    text[at + 1..at + JUMP].copy_from_slice(&relative);
                }
                if state > 2 {
                    text[at] = 0xe9;
                }
                if state > 3 {
                    text[call] = 0xcc;
                }
            }
            assert!(patched > 40, "{}: {patched}", dump.name);
            assert_eq!(planned(&dump, &text), plan, "{}", dump.name);
        }
    }
}
