//! A small kernel made by hand: symbols, types and text as the planner reads them.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Where the text of the kernel proper starts.
pub const CORE: u64 = 0xffff_ffff_8100_0000;
/// Where the module's text starts.
pub const MODULE: u64 = 0xffff_ffff_c020_1000;
/// In no text that has symbols: where trampolines and copies of probed instructions are.
pub const TRAMPOLINE: u64 = 0xffff_ffff_c040_0000;

/// The nop that ftrace patches.
static ENTRY: &[u8] = &[0x0f, 0x1f, 0x44, 0x00, 0x00];
const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
/// `nopl -42(%rax)`, what 7.3 makes of an `endbr64` that nothing jumps to.
const SEALED: &[u8] = &[0x0f, 0x1f, 0x40, 0xd6];
const PUSH: &[u8] = &[0x53];
const POP: &[u8] = &[0x5b];
const RET: &[u8] = &[0xc3];
/// `mov $8,%ecx`.
const MOV5: &[u8] = &[0xb9, 8, 0, 0, 0];
/// `mov %rax,%rbx`.
const MOV3: &[u8] = &[0x48, 0x89, 0xc3];
/// `test %rax,%rax`.
const TEST: &[u8] = &[0x48, 0x85, 0xc0];
/// `mov 0x18(%rsp),%rdi`.
const LOAD: &[u8] = &[0x48, 0x8b, 0x7c, 0x24, 0x18];
/// `js` over the next instruction of five bytes.
const SKIP5: &[u8] = &[0x78, 5];

#[derive(Clone, Copy)]
enum Op {
    Plain(&'static [u8]),
    Call(&'static str),
    Jump(&'static str),
    Branch(&'static str),
    /// `movabs` whose constant looks like a call to the function.
    Lookalike(&'static str),
}

use Op::{Branch, Call, Jump, Lookalike, Plain};

/// An instruction as it was laid out.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    /// Where in the image.
    pub offset: usize,
    /// How long.
    pub length: usize,
    /// Whether it leads elsewhere.
    pub leads: bool,
    /// Where its function ends in the image, filler left out.
    pub end: usize,
    /// Whether it is ftrace's.
    pub entry: bool,
    /// Whether its function has a constant that looks like a call: behind a probe nobody could tell it from one.
    pub odd: bool,
}

/// Text and what is known of it.
#[derive(Clone)]
pub struct Image {
    /// Where it starts.
    pub address: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its instructions in order.
    pub placed: Vec<Placed>,
    /// The functions with their addresses.
    pub functions: Vec<(&'static str, u64)>,
}

impl Image {
    /// The offset of an address.
    pub fn at(&self, address: u64) -> usize {
        (address - self.address) as usize
    }

    /// Writes `opcode rel32` that leads to an address.
    pub fn lead(&mut self, offset: usize, opcode: u8, to: u64) {
        let next = self.address + offset as u64 + 5;
        self.bytes[offset] = opcode;
        self.bytes[offset + 1..offset + 5].copy_from_slice(&(to.wrapping_sub(next) as u32).to_le_bytes());
    }
}

type Source = (&'static str, Vec<Op>);

fn core() -> Vec<Source> {
    let traced = |ops: &[Op]| [&[Plain(ENTRY), Plain(PUSH)], ops, &[Plain(POP), Plain(RET)]].concat();
    let behind = |mark: &'static [u8], ops: &[Op]| [&[Plain(mark)], &traced(ops)[..]].concat();
    let plain = |ops: &[Op]| [&[Plain(PUSH)], ops, &[Plain(POP), Plain(RET)]].concat();
    vec![
        ("_stext", vec![Plain(RET)]),
        ("vfs_readv", traced(&[Plain(MOV5), Call("import_iovec"), Plain(TEST), Plain(MOV3), Plain(LOAD)])),
        ("__do_sys_vmsplice", plain(&[Call("import_iovec"), Plain(TEST)])),
        ("vfs_writev.cold", plain(&[Call("import_iovec"), Plain(MOV5)])),
        ("vfs_writev", behind(ENDBR64, &[Plain(MOV3)])),
        ("aio_read", behind(SEALED, &[Plain(MOV3), Call("__import_iovec"), Plain(MOV5)])),
        ("io_msg_copy_hdr.constprop.0", traced(&[Call("__import_iovec"), Plain(MOV3), Plain(MOV3)])),
        (
            "filemap_read",
            traced(&[
                Call("copy_page_to_iter"),
                Plain(MOV3),
                Plain(SKIP5),
                Plain(MOV5),
                Call("copy_page_to_iter"),
                Plain(LOAD),
                Plain(RET),
                Call("iov_iter_zero"),
                Plain(TEST),
                Plain(MOV3),
            ]),
        ),
        (
            "pipe_read",
            traced(&[
                Lookalike("copy_page_to_iter"),
                Call("copy_page_to_iter"),
                Lookalike("copy_page_to_iter"),
            ]),
        ),
        ("simple_copy_to_iter", vec![Plain(ENTRY), Plain(TEST), Plain(MOV3), Jump("_copy_to_iter")]),
        ("dax_copy_to_iter", vec![Plain(ENTRY), Branch("_copy_mc_to_iter"), Jump("_copy_to_iter")]),
        ("udplite_getfrag", traced(&[Call("_copy_from_iter"), Plain(MOV5)])),
        ("udplite_getfrag", traced(&[Call("_copy_from_iter"), Plain(MOV5)])),
        ("csum_and_copy_to_iter", traced(&[Call("_copy_to_iter"), Plain(MOV5)])),
        ("kernel_read_on", [&[Plain(ENTRY)][..], &[Plain(MOV5); 60], &[Jump("_copy_from_iter")]].concat()),
        // lib/iov_iter.c
        ("_copy_to_iter", plain(&[Plain(MOV5)])),
        ("_copy_mc_to_iter", plain(&[Plain(MOV5)])),
        ("_copy_from_iter", plain(&[Plain(MOV5)])),
        ("copy_page_to_iter", plain(&[Call("_copy_to_iter"), Plain(MOV3)])),
        ("iov_iter_zero", plain(&[Plain(MOV5)])),
        ("__import_iovec", plain(&[Plain(MOV5)])),
        ("import_iovec", plain(&[Call("__import_iovec"), Plain(POP)])),
        ("kstrtoull", plain(&[Plain(MOV5)])),
    ]
}

fn module() -> Vec<Source> {
    vec![
        ("tun_put", vec![Plain(ENTRY), Jump("_copy_to_iter")]),
        ("tun_do_read", vec![Plain(ENTRY), Call("_copy_to_iter"), Plain(MOV3), Plain(MOV3), Plain(RET)]),
    ]
}

/// The kernel proper and a module.
pub fn images() -> [Image; 2] {
    let (core, module) = (core(), module());
    let mut addresses = BTreeMap::new();
    for (start, sources) in [(CORE, &core), (MODULE, &module)] {
        place(start, sources, |name, address| {
            addresses.entry(name).or_insert(address);
        });
    }
    [assemble(CORE, &core, &addresses), assemble(MODULE, &module, &addresses)]
}

fn length(op: &Op) -> usize {
    match op {
        Plain(bytes) => bytes.len(),
        Call(_) | Jump(_) => 5,
        Branch(_) => 6,
        Lookalike(_) => 10,
    }
}

/// Tells where each function is, at multiples of 16.
fn place(start: u64, sources: &[Source], mut tell: impl FnMut(&'static str, u64)) -> u64 {
    sources.iter().fold(start, |address, (name, ops)| {
        tell(name, address);
        (address + ops.iter().map(length).sum::<usize>() as u64).next_multiple_of(16)
    })
}

fn assemble(address: u64, sources: &[Source], addresses: &BTreeMap<&'static str, u64>) -> Image {
    let mut functions = Vec::new();
    let end = place(address, sources, |name, at| functions.push((name, at)));
    let bytes = vec![0xcc; (end - address) as usize];
    let mut image = Image { address, bytes, placed: Vec::new(), functions: functions.clone() };
    for ((_, ops), (_, start)) in sources.iter().zip(functions) {
        let mut offset = image.at(start);
        let end = offset + ops.iter().map(length).sum::<usize>();
        let odd = ops.iter().any(|op| matches!(op, Lookalike(_)));
        for op in ops {
            match *op {
                Plain(bytes) => image.bytes[offset..offset + bytes.len()].copy_from_slice(bytes),
                Call(to) => image.lead(offset, 0xe8, addresses[to]),
                Jump(to) => image.lead(offset, 0xe9, addresses[to]),
                Branch(to) => {
                    image.bytes[offset] = 0x0f;
                    image.lead(offset + 1, 0x84, addresses[to]);
                }
                Lookalike(to) => {
                    image.bytes[offset..offset + 2].copy_from_slice(&[0x48, 0xb8]);
                    image.bytes[offset + 7..offset + 10].fill(0);
                    image.lead(offset + 2, 0xe8, addresses[to]);
                }
            }
            let leads = matches!(op, Call(_) | Jump(_) | Branch(_));
            let entry = matches!(op, Plain(bytes) if std::ptr::eq(*bytes, ENTRY));
            image.placed.push(Placed { offset, length: length(op), leads, end, entry, odd });
            offset += length(op);
        }
    }
    image
}

/// `/proc/kallsyms` of the two.
pub fn kallsyms(images: &[Image; 2]) -> String {
    let mut file = String::from("0000000000000000 A fixed_percpu_data\n");
    let [core, module] = images;
    for (name, address) in &core.functions {
        let _ = writeln!(file, "{address:016x} t {name}");
    }
    let end = core.address + core.bytes.len() as u64;
    let _ = writeln!(file, "{end:016x} T _etext\n{end:016x} D jiffies");
    for (name, address) in &module.functions {
        let _ = writeln!(file, "{address:016x} t {name}\t[tun]");
    }
    let _ = writeln!(file, "{TRAMPOLINE:016x} t bpf_prog_6deef7357e7b4530_sd\t[bpf]");
    let _ = writeln!(file, "{TRAMPOLINE:016x} t kprobe_optinsn_page\t[__builtin__kprobes]");
    file
}

/// The start of `/proc/kcore` with these segments: type (1 is `PT_LOAD`), address, size, offset in the file.
pub fn core_file(segments: &[(u32, u64, u64, u64)]) -> Vec<u8> {
    let mut file = vec![0; 64];
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    file[32..40].copy_from_slice(&64u64.to_le_bytes());
    file[54..56].copy_from_slice(&56u16.to_le_bytes());
    file[56..58].copy_from_slice(&(segments.len() as u16).to_le_bytes());
    for &(kind, address, size, offset) in segments {
        file.extend([kind, 5].map(u32::to_le_bytes).concat());
        file.extend([offset, address, 0, size, size, 0].map(u64::to_le_bytes).concat());
    }
    file
}

/// Writes BTF.
#[derive(Default)]
pub struct Types {
    types: Vec<u8>,
    strings: Vec<u8>,
    count: u32,
}

impl Types {
    /// The offset of a string.
    pub fn name(&mut self, name: &str) -> u32 {
        if self.strings.is_empty() {
            self.strings.push(0);
        }
        if name.is_empty() {
            return 0;
        }
        let offset = self.strings.len() as u32;
        self.strings.extend(name.bytes().chain([0]));
        offset
    }

    /// Adds a type; `rest` is what follows `struct btf_type`, `count` how many members that has.
    pub fn add(&mut self, name: &str, (kind, count): (u32, usize), value: u32, rest: &[u32]) -> u32 {
        let name = self.name(name);
        for word in [name, kind << 24 | count as u32, value].iter().chain(rest) {
            self.types.extend(word.to_le_bytes());
        }
        self.count += 1;
        self.count
    }

    /// A struct (kind 4) or union (5) with members `(name, type, offset in bits)`.
    pub fn structure(&mut self, name: &str, kind: u32, members: &[(&str, u32, u32)]) -> u32 {
        let rest: Vec<u32> = members.iter().flat_map(|&(name, of, at)| [self.name(name), of, at]).collect();
        let last = members.iter().map(|(_, _, at)| at / 8 + 8).max().unwrap_or_default();
        self.add(name, (kind, members.len()), last, &rest)
    }

    /// A function with parameters `(name, type)`.
    pub fn function(&mut self, name: &str, returns: u32, parameters: &[(&str, u32)]) -> u32 {
        let rest: Vec<u32> = parameters.iter().flat_map(|&(name, of)| [self.name(name), of]).collect();
        let prototype = self.add("", (13, parameters.len()), returns, &rest);
        self.add(name, (12, 0), prototype, &[])
    }

    /// The file.
    pub fn file(&self) -> Vec<u8> {
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        let mut file = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, types, types, strings] {
            file.extend(word.to_le_bytes());
        }
        [file, self.types.clone(), self.strings.clone()].concat()
    }
}

/// The types of the kernel above, which are those of 6.12.
pub fn btf() -> Vec<u8> {
    let mut types = Types::default();
    let long = types.add("unsigned long", (1, 0), 8, &[64]);
    let size = types.add("size_t", (8, 0), long, &[]);
    let bool_ = types.add("bool", (1, 0), 1, &[4 << 24 | 8]);
    let byte = types.add("u8", (1, 0), 1, &[8]);
    let pointer = types.add("", (2, 0), 0, &[]);
    let inner = types.structure("", 4, &[("__iov", pointer, 0), ("count", size, 64)]);
    let outer = types.structure("", 5, &[("__ubuf_iovec", pointer, 0), ("", inner, 0)]);
    let iter = types.structure(
        "iov_iter",
        4,
        &[("iter_type", byte, 0), ("nofault", bool_, 8), ("iov_offset", size, 64), ("", outer, 128)],
    );
    let iter = types.add("", (10, 0), iter, &[]);
    let iter = types.add("", (2, 0), iter, &[]);
    let members: Vec<u32> = ["ITER_UBUF", "ITER_IOVEC"]
        .iter()
        .zip(0..)
        .flat_map(|(name, value)| [types.name(name), value])
        .collect();
    types.add("iter_type", (6, 2), 4, &members);
    let int = types.add("int", (1, 0), 4, &[1 << 24 | 32]);
    types.structure("jump_entry", 4, &[("code", int, 0), ("target", int, 32), ("key", long, 64)]);
    types.structure("exception_table_entry", 4, &[("insn", int, 0), ("fixup", int, 32)]);
    let copy = [("addr", pointer), ("bytes", size), ("i", iter)];
    types.function("_copy_to_iter", size, &copy);
    types.function("_copy_from_iter", size, &copy);
    types.function("iov_iter_zero", size, &[("bytes", size), ("i", iter)]);
    let wrapped = [("addr", pointer), ("bytes", size), ("data", pointer), ("i", iter)];
    types.function("simple_copy_to_iter", size, &wrapped);
    types.function("csum_and_copy_to_iter", size, &wrapped);
    types.function("dax_copy_to_iter", size, &wrapped);
    types.file()
}
