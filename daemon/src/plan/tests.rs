mod kernels;

use proptest::prelude::*;

use super::fixture::{self, Image, TRAMPOLINE};
use super::kallsyms::Symbols;
use super::*;

fn planned(images: &[Image; 2]) -> Plan {
    let kallsyms = fixture::kallsyms(images);
    let btf = fixture::btf();
    let symbols = Symbols::parse(kallsyms.as_bytes()).unwrap();
    let [core, module] = images;
    let text = [
        Text { address: core.address, bytes: &core.bytes, module: None },
        Text { address: module.address, bytes: &module.bytes, module: Some("tun") },
    ];
    plan(&symbols, &Btf::parse(&btf).unwrap(), &text).unwrap()
}

fn target<'a>(plan: &'a Plan, symbol: &str) -> &'a Target {
    plan.targets.iter().find(|target| target.symbol == symbol).unwrap()
}

/// Each site as its name and what is done with it.
fn sites(plan: &Plan, symbol: &str) -> Vec<String> {
    let told = |site: &Site| match &site.mechanism {
        Mechanism::Fentry => format!("{} fentry", site.name()),
        Mechanism::Fexit => format!("{} fexit", site.name()),
        Mechanism::Trap { after } => format!("{} trap +{}", site.name(), after - site.address),
        Mechanism::Jump { before, .. } => format!("{} jump {before:x?}", site.name()),
        Mechanism::Unavailable { reason } => format!("{}: {reason}", site.name()),
    };
    target(plan, symbol).sites.iter().map(told).collect()
}

#[test]
fn every_site_is_found_once() {
    let plan = planned(&fixture::images());
    let symbols: Vec<_> = plan.targets.iter().map(|target| target.symbol.as_str()).collect();
    assert_eq!(
        symbols,
        [
            "import_iovec",
            "__import_iovec",
            "_copy_to_iter",
            "_copy_from_iter",
            "_copy_mc_to_iter",
            "copy_page_to_iter",
            "iov_iter_zero",
            "csum_and_copy_to_iter",
            "dax_copy_to_iter",
        ]
    );
    // The part that the compiler split off can be probed, as the whole can.
    assert_eq!(
        sites(&plan, "import_iovec"),
        [
            "vfs_readv+0xb trap +5",
            "vfs_writev.cold+0x1 trap +5",
            "__do_sys_vmsplice+0x1: its caller is notrace",
        ]
    );
    // Not the call in import_iovec itself.
    assert_eq!(
        sites(&plan, "__import_iovec"),
        ["aio_read+0xd trap +5", "io_msg_copy_hdr.constprop.0+0x6 trap +5",]
    );
    // Neither what only looks like a call, nor copy_page_to_iter's or csum_and_copy_to_iter's own calls.
    assert_eq!(
        sites(&plan, "_copy_to_iter"),
        [
            "simple_copy_to_iter fentry",
            "tun_do_read+0x5 [tun] trap +5",
            "tun_put+0x5 [tun]: it is a tail jump in a module",
        ]
    );
    assert_eq!(
        sites(&plan, "copy_page_to_iter"),
        ["filemap_read+0x6 trap +5", "filemap_read+0x15 trap +5", "pipe_read+0x10 trap +5",]
    );
    assert_eq!(sites(&plan, "csum_and_copy_to_iter"), ["csum_and_copy_to_iter fentry"]);
    // It jumps to two walkers.
    assert_eq!(sites(&plan, "dax_copy_to_iter"), ["dax_copy_to_iter fentry"]);
    assert_eq!(
        sites(&plan, "_copy_from_iter")[0],
        "kernel_read_on+0x131: it is a tail jump: nothing of its caller runs after it"
    );
}

#[test]
fn two_functions_of_one_name_are_two_sites() {
    let plan = planned(&fixture::images());
    let sites = &target(&plan, "_copy_from_iter").sites[1..];
    assert_eq!(sites.len(), 2);
    assert_eq!(sites[0].name(), sites[1].name());
    assert!(sites[0].address < sites[1].address);
}

#[test]
fn arguments_are_where_the_types_say() {
    let plan = planned(&fixture::images());
    let first = |symbol| target(&plan, symbol).sites[0].arguments;
    assert_eq!(
        first("import_iovec"),
        Arguments::Import { segments: 2, fast: 3, path: Path::Readv, by_syscall: true, pointer: false }
    );
    assert_eq!(
        first("__import_iovec"),
        Arguments::Import { segments: 2, fast: 3, path: Path::Aio, by_syscall: false, pointer: false }
    );
    let iter =
        |iter, bytes, count| Arguments::Iter { iter, bytes, count, returns: Returns::Bytes, keeps: false };
    // The wrapper's own, then the target's.
    assert_eq!(first("_copy_to_iter"), iter(3, 1, 4));
    assert_eq!(target(&plan, "_copy_to_iter").sites[2].arguments, iter(2, 1, 3));
    assert_eq!(first("iov_iter_zero"), iter(1, 0, 2));
}

#[test]
fn kinds_come_from_the_types() {
    let kind = |name: &str, value| Kind { name: name.into(), value };
    let iter = planned(&fixture::images()).iter;
    let kinds = vec![kind("ubuf", 0), kind("iovec", 1)];
    assert_eq!(iter, IterLayout { kind_offset: 0, kinds, ignored_bits: 0 });
}

/// A second iotrace at work: a breakpoint at each call, a jump behind it, and ftrace called at each entry.
#[test]
fn text_that_is_probed_gives_the_same_plan() {
    let pristine = fixture::images();
    let plan = planned(&pristine);
    let mut probed = pristine.clone();
    for site in plan.targets.iter().flat_map(|target| &target.sites) {
        let image = &mut probed[usize::from(site.module.is_some())];
        if let Mechanism::Trap { after } = site.mechanism {
            let (call, after) = (image.at(site.address), image.at(after));
            image.bytes[call] = 0xcc;
            image.lead(after, 0xe9, TRAMPOLINE + 0x100);
        }
    }
    // A call, or on 7.x a jump.
    for instruction in [0xe8, 0xe9] {
        for image in &mut probed {
            for entry in image.placed.clone().into_iter().filter(|placed| placed.entry) {
                image.lead(entry.offset, instruction, TRAMPOLINE);
            }
        }
        assert_eq!(planned(&probed), plan);
    }
}

/// Puts a kprobe on an instruction as the kernel would: as a jump if it may and is wanted, else as a breakpoint.
fn probe(image: &mut Image, index: usize, jump: bool) {
    let placed = image.placed[index];
    let room = placed.offset..placed.offset + 5;
    let in_the_way = image.placed.iter().any(|other| {
        let touched = other.offset < room.end && room.start < other.offset + other.length;
        touched && (other.leads || other.entry || image.bytes[other.offset] == 0xcc)
    });
    if jump && !in_the_way && room.end <= placed.end {
        image.lead(placed.offset, 0xe9, TRAMPOLINE + 0x100);
    } else {
        image.bytes[placed.offset] = 0xcc;
    }
}

proptest! {
    #[test]
    fn no_probe_of_anybody_changes_the_plan(
        probes in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), any::<bool>()), 0..24)
    ) {
        let mut images = fixture::images();
        let mut covered = [vec![], vec![]];
        for (at, jump, module) in probes {
            let image = &mut images[usize::from(module)];
            let index = at.index(image.placed.len());
            let placed = image.placed[index];
            let taken: &mut Vec<usize> = &mut covered[usize::from(module)];
            // What a jump has covered is not there to be probed.
            if placed.entry || placed.odd || taken.iter().any(|&from| (from..from + 5).contains(&placed.offset)) {
                continue;
            }
            probe(image, index, jump);
            if image.bytes[placed.offset] == 0xe9 {
                taken.push(placed.offset);
            }
        }
        prop_assert_eq!(planned(&images), planned(&fixture::images()));
    }

    #[test]
    fn any_text_gives_some_plan(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        at in any::<prop::sample::Index>(),
        fill in prop::option::of(any::<u8>()),
    ) {
        let mut images = fixture::images();
        let start = at.index(images[0].bytes.len());
        for (place, byte) in images[0].bytes[start..].iter_mut().zip(bytes) {
            *place = fill.unwrap_or(byte);
        }
        planned(&images);
    }
}

#[test]
fn missing_parts_are_named() {
    let images = fixture::images();
    let btf = fixture::btf();
    let btf = Btf::parse(&btf).unwrap();
    let kallsyms = fixture::kallsyms(&images);
    let symbols = Symbols::parse(kallsyms.as_bytes()).unwrap();
    assert_eq!(plan(&symbols, &btf, &[]), Err(PlanError::NoText));

    let far = format!("{kallsyms}ffffffff8fffff00 T iov_iter_init\n");
    let spread = plan(&Symbols::parse(far.as_bytes()).unwrap(), &btf, &[]);
    assert!(matches!(spread, Err(PlanError::Spread { .. })));

    let other = Symbols::parse(b"ffffffff81000000 T start_kernel\n").unwrap();
    assert_eq!(plan(&other, &btf, &[]), Err(PlanError::NoTargets));

    let empty = fixture::Types::default().file();
    let error = plan(&symbols, &Btf::parse(&empty).unwrap(), &[]).unwrap_err();
    assert_eq!(error.to_string(), "the kernel's BTF has no struct iov_iter with its iter_type");
}
