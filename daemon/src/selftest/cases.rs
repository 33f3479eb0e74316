//! What is tested: every path and kind, with the load that leads there.

use iotrace_load::{Abi, Name};

/// A load that imports.
pub struct Import {
    /// The path that it takes.
    pub path: &'static str,
    /// The load.
    pub work: Name,
    /// The calls that there are.
    pub abis: &'static [Abi],
    /// Parts of the names of the functions that import on this path.
    pub importers: &'static [&'static str],
}

const BOTH: &[Abi] = &[Abi::Native, Abi::Compat];
const NATIVE: &[Abi] = &[Abi::Native];

const fn both(path: &'static str, work: Name, importers: &'static [&'static str]) -> Import {
    Import { path, work, abis: BOTH, importers }
}

const fn native(path: &'static str, work: Name, importers: &'static [&'static str]) -> Import {
    Import { path, work, abis: NATIVE, importers }
}

/// Every load that imports.
pub const IMPORTS: &[Import] = &[
    both("readv", Name::Readv, &["vfs_readv"]),
    both("writev", Name::Writev, &["vfs_writev"]),
    both("preadv", Name::Preadv, &["vfs_readv"]),
    both("pwritev", Name::Pwritev, &["vfs_writev"]),
    both("preadv2", Name::Preadv2, &["vfs_readv"]),
    both("pwritev2", Name::Pwritev2, &["vfs_writev"]),
    both("sendmsg", Name::Sendmsg, &["msg"]),
    both("recvmsg", Name::Recvmsg, &["msg"]),
    both("sendmmsg", Name::Sendmmsg, &["msg"]),
    both("recvmmsg", Name::Recvmmsg, &["msg"]),
    native("io_uring", Name::Uring, &["io_"]),
    native("io_uring", Name::UringWrite, &["io_"]),
    native("io_uring", Name::UringSend, &["io_", "msg"]),
    native("io_uring", Name::UringReceive, &["io_", "msg"]),
    native("io_uring", Name::UringAsync, &["io_"]),
    native("io_uring", Name::UringPolled, &["io_"]),
    native("io_uring", Name::UringFixed, &["io_"]),
    native("io_uring", Name::UringWriteFixed, &["io_"]),
    native("aio", Name::Aio, &["aio_"]),
    native("aio", Name::AioWrite, &["aio_"]),
    both("process_vm", Name::ProcessVm, &["process_vm"]),
    both("process_vm", Name::ProcessVmWrite, &["process_vm"]),
    both("vmsplice", Name::Vmsplice, &["vmsplice"]),
    both("madvise", Name::Madvise, &["madvise"]),
    both("keyctl", Name::Keyctl, &["keyctl"]),
];

/// Paths that no load takes, and why.
pub const NO_WORK: &[(&str, &str)] = &[
    ("block", "it takes a SCSI or NVMe device of which nobody else makes use"),
    ("other", "no load leads to an importer without a name of its own"),
];

/// A load that walks iterators.
pub struct Walk {
    /// The kind, or what older kernels make of it.
    pub kinds: &'static [&'static str],
    /// The functions of which exactly one walks, once for each call of the load.
    pub functions: &'static [&'static str],
    /// Bytes of each call.
    pub bytes: u64,
    /// The load.
    pub work: Name,
    /// Its options.
    pub options: &'static str,
    /// Parts of the names of the functions that call it.
    pub callers: &'static [&'static str],
}

const READ: &[&str] = &["copy_page_to_iter", "copy_to_iter"];
const WRITE: &[&str] =
    &["copy_page_from_iter_atomic", "copy_folio_from_iter_atomic", "iov_iter_copy_from_user_atomic"];

/// Every load that walks, by kind.
pub const WALKS: &[Walk] = &[
    Walk {
        kinds: &["ubuf", "iovec"],
        functions: READ,
        bytes: 512,
        work: Name::Pread,
        options: "--bytes 512",
        callers: &["read"],
    },
    Walk {
        kinds: &["ubuf", "iovec"],
        functions: WRITE,
        bytes: 512,
        work: Name::Pwrite,
        options: "--bytes 512",
        callers: &["write"],
    },
    Walk {
        kinds: &["iovec"],
        functions: READ,
        bytes: 512,
        work: Name::Preadv,
        options: "--segments 2 --bytes 256",
        callers: &["read"],
    },
    Walk {
        kinds: &["iovec"],
        functions: &["iov_iter_zero"],
        bytes: 512,
        work: Name::Preadv,
        options: "--segments 2 --bytes 256 --file /dev/zero",
        callers: &["zero"],
    },
    Walk {
        kinds: &["kvec"],
        functions: READ,
        bytes: 256,
        work: Name::NoProgram,
        options: "",
        callers: &["read"],
    },
    Walk {
        kinds: &["bvec"],
        functions: WRITE,
        bytes: 512,
        work: Name::Splice,
        options: "--bytes 512",
        callers: &["write"],
    },
    Walk {
        kinds: &["pipe"],
        functions: READ,
        bytes: 512,
        work: Name::Sendfile,
        options: "--bytes 512",
        callers: &["read"],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use iotrace_common::import::Path;

    #[test]
    fn every_path_has_a_load_or_a_reason() {
        // One comes with the local side.
        for path in Path::ALL.iter().filter(|path| **path != Path::ProcessVmRemote) {
            let loads = IMPORTS.iter().any(|case| case.path == path.name());
            let reasons = NO_WORK.iter().any(|(without, _)| *without == path.name());
            assert!(loads != reasons, "{}", path.name());
        }
        let known = |path: &str| Path::ALL.iter().any(|known| known.name() == path);
        assert!(IMPORTS.iter().all(|case| known(case.path)));
    }
}
