//! What planning costs on this kernel, with modules made up beside its own text: a guest has no room for so many.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::Read as _,
    os::unix::fs::FileExt as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use iotrace::plan::{btf::Btf, kallsyms::Symbols, kcore::Segments, landing::Landings, plan, text::Text};
use serde_json::{Value, json};

/// Sites in modules of each step.
const STEPS: [usize; 2] = [0, 2_000];
/// Sites of a module.
const PER_MODULE: usize = 10;
/// Bytes of a function; one in [`EVERY`] calls a target.
const FUNCTION: usize = 512;
/// See [`FUNCTION`]. So a module has 80 KiB.
const EVERY: usize = 16;
/// Where modules are: below the kernel's own area for them, so that they lie on none that is loaded.
const MODULES: u64 = 0xffff_ffff_f000_0000;
/// The best of these counts: what else runs only adds.
const ROUNDS: usize = 3;
/// What modules call.
const TARGET: &str = "_copy_to_iter";

/// What a kernel tells of itself.
struct Kernel {
    kallsyms: Vec<u8>,
    btf: Vec<u8>,
    text: Vec<u8>,
    /// Where the text starts.
    address: u64,
}

impl Kernel {
    /// The running one.
    fn running() -> Result<Kernel> {
        let kallsyms = fs::read("/proc/kallsyms").context("/proc/kallsyms")?;
        let range = Symbols::parse(&kallsyms)?.core_text().context("no text")?;
        let kcore = File::open("/proc/kcore").context("/proc/kcore")?;
        let mut headers = Vec::new();
        (&kcore).take(64 << 10).read_to_end(&mut headers).context("/proc/kcore")?;
        let place = Segments::parse(&headers)?.locate(range.clone()).context("no text in /proc/kcore")?;
        let mut text = vec![0; (range.end - range.start) as usize];
        kcore.read_exact_at(&mut text, place).context("/proc/kcore")?;
        let btf = fs::read("/sys/kernel/btf/vmlinux").context("/sys/kernel/btf/vmlinux")?;
        Ok(Kernel { kallsyms, btf, text, address: range.start })
    }

    /// Adds modules with so many sites: their symbols to the kernel's, and their text, which is returned.
    fn with_modules(&self, sites: usize) -> Result<(Vec<u8>, Vec<Module>)> {
        let target = Symbols::parse(&self.kallsyms)?.address_of(TARGET).context(TARGET)?;
        let mut kallsyms = self.kallsyms.clone();
        let mut modules = Vec::new();
        for number in 0..sites.div_ceil(PER_MODULE) {
            let address = MODULES + (number * (PER_MODULE * EVERY * FUNCTION + (64 << 10))) as u64;
            let name = format!("made_up_{number}");
            let mut bytes = Vec::with_capacity(PER_MODULE * EVERY * FUNCTION);
            for place in 0..PER_MODULE * EVERY {
                let at = address + bytes.len() as u64;
                let mut line = String::new();
                // Writing to a string cannot fail.
                let _infallible = writeln!(line, "{at:016x} t {name}_{place}\t[{name}]");
                kallsyms.extend_from_slice(line.as_bytes());
                function(&mut bytes, at, (place % EVERY == 0).then_some(target));
            }
            modules.push(Module { name, address, bytes });
        }
        Ok((kallsyms, modules))
    }
}

/// A module's text.
struct Module {
    name: String,
    address: u64,
    bytes: Vec<u8>,
}

/// A function of [`FUNCTION`] bytes, of instructions of several lengths.
fn function(bytes: &mut Vec<u8>, at: u64, target: Option<u64>) {
    let end = bytes.len() + FUNCTION;
    let start = bytes.len();
    // `nopl 0x0(%rax,%rax,1)`, ftrace's.
    bytes.extend([0x0f, 0x1f, 0x44, 0x00, 0x00]);
    let body: [&[u8]; 4] = [
        // mov %rax,%rbx; mov 0x18(%rsp),%rdi; mov $8,%ecx; test %rax,%rax
        &[0x48, 0x89, 0xc3],
        &[0x48, 0x8b, 0x7c, 0x24, 0x18],
        &[0xb9, 8, 0, 0, 0],
        &[0x48, 0x85, 0xc0],
    ];
    let fill = |bytes: &mut Vec<u8>, to: usize| {
        for instruction in body.iter().cycle() {
            if bytes.len() + instruction.len() > to {
                break;
            }
            bytes.extend_from_slice(instruction);
        }
    };
    fill(bytes, start + FUNCTION / 2);
    if let Some(target) = target {
        let next = at + (bytes.len() - start) as u64 + 5;
        bytes.push(0xe8);
        bytes.extend((target.wrapping_sub(next) as u32).to_le_bytes());
    }
    fill(bytes, end - 1);
    // ret, and filler.
    bytes.push(0xc3);
    bytes.resize(end, 0xcc);
}

/// A row for each number of sites: the kernel's own text alone, and with modules.
///
/// # Errors
/// If the kernel's files cannot be read, or a site is not found.
pub fn measure() -> Result<Vec<Value>> {
    let kernel = Kernel::running()?;
    STEPS.iter().map(|sites| step(&kernel, *sites)).collect()
}

/// From the files' bytes to the plan, jumps included. The tables of static keys and fixups are left out: reading them
/// is part of the daemon's own `iotrace_start_seconds{stage="plan"}`.
fn step(kernel: &Kernel, sites: usize) -> Result<Value> {
    let (kallsyms, modules) = kernel.with_modules(sites)?;
    let (mut best, mut found) = (Duration::MAX, 0);
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let symbols = Symbols::parse(&kallsyms)?;
        let btf = Btf::parse(&kernel.btf)?;
        let core = Text { address: kernel.address, bytes: &kernel.text, module: None };
        let made_up = modules.iter().map(|Module { name, address, bytes }| Text {
            address: *address,
            bytes,
            module: Some(name),
        });
        let text: Vec<Text<'_>> = [core].into_iter().chain(made_up).collect();
        let mut plan = plan(&symbols, &btf, &text)?;
        plan.optimize(&symbols, &text, &Landings::default(), true);
        best = best.min(started.elapsed());
        let planned = plan.targets.iter().flat_map(|target| &target.sites);
        found = planned
            .filter(|site| site.module.as_ref().is_some_and(|name| name.starts_with("made_up")))
            .count();
    }
    ensure!(found == sites, "{found} of {sites} sites were found in modules");
    let text = kernel.text.len() + modules.iter().map(|module| module.bytes.len()).sum::<usize>();
    let row = json!({
        "row": format!("planning, {sites} sites in made-up modules"),
        "instructions": best.as_nanos() as u64,
        "text": text,
    });
    eprintln!("bench: {row}");
    Ok(row)
}
