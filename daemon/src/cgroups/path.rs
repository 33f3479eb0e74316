//! What a cgroup's path says: the systemd unit and the container whose processes are there.

/// The names that a cgroup's path holds; empty where it holds none.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Names {
    /// The innermost systemd unit, such as `nginx.service`.
    pub unit: String,
    /// The innermost container's id, its first twelve digits as its tools show them.
    pub container: String,
}

/// Units that have a cgroup.
const UNITS: [&str; 6] = [".service", ".scope", ".slice", ".socket", ".mount", ".swap"];

/// What container managers put before the id, in `MANAGER-ID.scope` or in `MANAGER-ID`. Their monitors, such as
/// `libpod-conmon-ID.scope`, run outside the container.
const MANAGERS: [&str; 7] =
    ["docker", "libpod", "libpod-payload", "cri-containerd", "containerd", "crio", "nerdctl"];

impl Names {
    /// Of a path below the mount point, with or without a slash before it.
    pub fn of(path: &[u8]) -> Names {
        let parts = || path.split(|&byte| byte == b'/').filter_map(|part| str::from_utf8(part).ok()).rev();
        Names {
            unit: parts().find_map(unit).unwrap_or_default().to_owned(),
            container: parts().find_map(container).unwrap_or_default().to_owned(),
        }
    }
}

/// The unit whose cgroup has this name.
pub fn unit(part: &str) -> Option<&str> {
    /// systemd's own limit.
    const MOST: usize = 255;
    // systemd puts an underscore before names that could be a file of the kernel's in a cgroup.
    let name = part.strip_prefix('_').unwrap_or(part);
    let stem = UNITS.iter().find_map(|kind| name.strip_suffix(kind))?;
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte);
    (!stem.is_empty() && name.len() <= MOST && name.bytes().all(valid)).then_some(name)
}

/// The container whose cgroup has this name: `docker-ID.scope`, `SLICE:cri-containerd:ID`, or the id alone.
fn container(part: &str) -> Option<&str> {
    const ID: usize = 64;
    const SHORT: usize = 12;
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let (before, id) = name.split_at_checked(name.len().checked_sub(ID)?)?;
    let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let known = match before.strip_suffix('-') {
        Some(manager) => MANAGERS.contains(&manager),
        None => before.is_empty() || before.ends_with(':'),
    };
    (known && id.bytes().all(hex)).then(|| &id[..SHORT])
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4c01db0b339c4d1f8a9b3b3b0a1c2d3e4f5061728394a5b6c7d8e9f00112233f";
    const SHORT: &str = "4c01db0b339c";

    #[test]
    fn paths_of_real_machines() {
        for (path, unit, container) in [
            // systemd
            ("/", "", ""),
            ("", "", ""),
            ("/init.scope", "init.scope", ""),
            ("/system.slice", "system.slice", ""),
            ("/system.slice/nginx.service", "nginx.service", ""),
            ("/system.slice/system-getty.slice/getty@tty1.service", "getty@tty1.service", ""),
            (
                "/system.slice/system-systemd\\x2dfsck.slice/systemd-fsck@dev-disk-by\\x2duuid-4A1B.service",
                "systemd-fsck@dev-disk-by\\x2duuid-4A1B.service",
                "",
            ),
            ("/system.slice/run-user-1000.mount", "run-user-1000.mount", ""),
            ("/system.slice/dbus.socket", "dbus.socket", ""),
            ("/system.slice/dev-zram0.swap", "dev-zram0.swap", ""),
            ("/system.slice/_cpu.service", "cpu.service", ""),
            ("/system.slice/__odd.service", "_odd.service", ""),
            ("/system.slice/systemd-udevd.service/udev", "systemd-udevd.service", ""),
            ("/user.slice/user-1000.slice/session-3.scope", "session-3.scope", ""),
            ("/user.slice/user-1000.slice/user@1000.service", "user@1000.service", ""),
            ("/user.slice/user-1000.slice/user@1000.service/init.scope", "init.scope", ""),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-firefox-2140.scope",
                "app-gnome-firefox-2140.scope",
                "",
            ),
            (
                "/user.slice/user-1000.slice/user@1000.service/session.slice/pipewire.service",
                "pipewire.service",
                "",
            ),
            ("/machine.slice/systemd-nspawn@web.service/payload", "systemd-nspawn@web.service", ""),
            (
                "/machine.slice/machine-qemu\\x2d1\\x2dweb.scope/libvirt/emulator",
                { "machine-qemu\\x2d1\\x2dweb.scope" },
                "",
            ),
            ("/lxc.payload.web/system.slice/ssh.service", "ssh.service", ""),
            // Docker
            ("/system.slice/docker.service", "docker.service", ""),
            ("/system.slice/docker-#.scope", "docker-#.scope", SHORT),
            ("/docker/#", "", SHORT),
            ("/docker/buildkit/x1", "", ""),
            ("/docker/#/docker/#", "", SHORT),
            ("/system.slice/docker-#.scope/system.slice/nginx.service", "nginx.service", SHORT),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/docker-#.scope",
                "docker-#.scope",
                SHORT,
            ),
            ("/system.slice/system.slice:docker:#", "system.slice", SHORT),
            // Podman
            ("/machine.slice/libpod-#.scope", "libpod-#.scope", SHORT),
            ("/machine.slice/libpod-#.scope/container", "libpod-#.scope", SHORT),
            ("/machine.slice/libpod-conmon-#.scope", "libpod-conmon-#.scope", ""),
            (
                "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-#.scope",
                "libpod-#.scope",
                SHORT,
            ),
            ("/libpod_parent/libpod-#", "", SHORT),
            ("/system.slice/web.service/libpod-payload-#", "web.service", SHORT),
            // Kubernetes
            (
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1f2e_3d.slice/cri-containerd-#.scope",
                "cri-containerd-#.scope",
                SHORT,
            ),
            (
                "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1f2e.slice/crio-#.scope",
                "crio-#.scope",
                SHORT,
            ),
            ("/kubepods.slice/kubepods-pod1f2e.slice/crio-#.scope/container", "crio-#.scope", SHORT),
            ("/kubepods.slice/kubepods-pod1f2e.slice/crio-conmon-#.scope", "crio-conmon-#.scope", ""),
            ("/kubepods.slice/kubepods-pod1f2e.slice/docker-#.scope", "docker-#.scope", SHORT),
            ("/kubepods/burstable/pod1f2e-3d4c/#", "", SHORT),
            ("/kubepods/pod1f2e-3d4c", "", ""),
            (
                "/system.slice/containerd.service/kubepods-burstable-pod1f2e.slice:cri-containerd:#",
                "containerd.service",
                SHORT,
            ),
            ("/k8s.io/#", "", SHORT),
            ("/system.slice/nerdctl-#.scope", "nerdctl-#.scope", SHORT),
            ("/ecs/0123456789abcdef0123456789abcdef/#", "", SHORT),
        ] {
            let names = Names::of(path.replace('#', ID).as_bytes());
            let expected = Names { unit: unit.replace('#', ID), container: container.into() };
            assert_eq!(names, expected, "{path}");
        }
    }

    #[test]
    fn hostile_paths_give_no_names() {
        let upper = format!("/docker/{}", ID.to_uppercase());
        let unknown = format!("/evil-{ID}.scope");
        let long = format!("/{}.service", "a".repeat(300));
        for path in [
            ".service".as_bytes(),
            "/_.service".as_bytes(),
            "/a b.service".as_bytes(),
            "/a\nb.service".as_bytes(),
            "/a\"b.service".as_bytes(),
            "/größe.service".as_bytes(),
            b"/\xff\xfe.service",
            upper.as_bytes(),
            long.as_bytes(),
        ] {
            assert_eq!(Names::of(path), Names::default(), "{}", path.escape_ascii());
        }
        assert_eq!(Names::of(unknown.as_bytes()).container, "");
        // A cut through the middle of a character is no id.
        assert_eq!(container(&format!("é{}", &ID[1..])), None);
    }
}
