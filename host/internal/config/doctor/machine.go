package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/machine"
	"github.com/pannier/pannier/host/internal/system/mountuse"

	"github.com/pannier/pannier/internal/procfs"
)

// propagation: containers see a volume that is mounted after their start's mount namespace was made, and the host what
// a driver in a container mounts, only through shared mounts (mount_namespaces(7)).
func (p *Patient) propagation(context.Context) []Finding {
	m := p.mounts.of(p.dataDir())
	if m == nil {
		return skipped("the mount of %s is not in the mount table", p.dataDir())
	}
	if strings.Contains(m.Optional, "shared:") {
		return ok("%s is on %s, which is shared", p.dataDir(), m.Mountpoint)
	}
	return one(Warn, fmt.Sprintf("%s is on %s, which is not shared: containers do not see volumes that are mounted later, and"+
		" the host not what a driver in a container mounts", p.dataDir(), m.Mountpoint),
		"mount --make-rshared "+m.Mountpoint)
}

// namespace: what an agent mounts in a namespace of its own is not visible on the machine.
func (p *Patient) namespace(context.Context) []Finding {
	agent, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", p.status.GetPid()))
	if err != nil {
		return skipped("the agent's process cannot be looked at: %v", err)
	}
	machine, err := os.Readlink("/proc/1/ns/mnt")
	if err != nil {
		return skipped("process 1 cannot be looked at: %v", err)
	}
	if agent == machine {
		return ok("the agent mounts in the machine's own")
	}
	return one(Fail, "the agent has a mount namespace of its own: nothing else sees its mounts. Its unit has a setting such"+
		" as PrivateTmp or ProtectSystem, or it runs in a container", "systemctl cat pannier")
}

const loopControl = "/dev/loop-control"

// loopDevices: csi-local mounts files by loop devices.
func (p *Patient) loopDevices(context.Context) []Finding {
	_, err := os.Stat(loopControl)
	if err == nil {
		return ok("%s is there", loopControl)
	}
	return []Finding{{
		Status: Warn, Command: "modprobe loop",
		Why: fmt.Sprintf("csi-local needs loop devices with some file systems: %v", err),
		fix: func(ctx context.Context) error { return run(ctx, "modprobe", "loop") },
	}}
}

// orphanLoops are loop devices whose file in the data directory was deleted, and that nothing has mounted.
func (p *Patient) orphanLoops(context.Context) []Finding {
	var problems []Finding
	for name, file := range procfs.LoopFiles() {
		backing, deleted := strings.CutSuffix(file, " (deleted)")
		device := "/dev/" + name
		if !deleted || !mountuse.Within(backing, p.dataDir()) || p.mounts.uses(device) {
			continue
		}
		problems = append(problems, Finding{
			Status: Warn, Command: "losetup -d " + device,
			Why: fmt.Sprintf("%s is of %s, which was deleted, and keeps its space", device, backing),
			fix: func(ctx context.Context) error {
				if procfs.LoopFiles()[name] != file {
					return errors.New("it was detached meanwhile")
				}
				return run(ctx, "losetup", "-d", device)
			},
		})
	}
	return or(problems, "none below %s", p.dataDir())
}

// tools are the programs that a file system needs, and Debian's package of them.
type tools struct {
	programs []string
	pkg      string
}

var toolsOf = map[string]tools{
	"ext3":  {[]string{"mkfs.ext3", "fsck.ext3", "resize2fs"}, "e2fsprogs"},
	"ext4":  {[]string{"mkfs.ext4", "fsck.ext4", "resize2fs"}, "e2fsprogs"},
	"xfs":   {[]string{"mkfs.xfs", "xfs_repair", "xfs_growfs"}, "xfsprogs"},
	"btrfs": {[]string{"mkfs.btrfs", "btrfs"}, "btrfs-progs"},
	"nfs":   {[]string{"mount.nfs"}, "nfs-common"},
	"nfs4":  {[]string{"mount.nfs4"}, "nfs-common"},
	"cifs":  {[]string{"mount.cifs"}, "cifs-utils"},
}

// tools: drivers call the programs of the file systems in use.
func (p *Patient) tools(ctx context.Context) []Finding {
	inUse := p.fileSystems(ctx)
	var problems []Finding
	for _, fileSystem := range inUse {
		var missing []string
		for _, program := range toolsOf[fileSystem].programs {
			if !installed(program) {
				missing = append(missing, program)
			}
		}
		if len(missing) > 0 {
			problems = append(problems, one(Fail, fmt.Sprintf("%s is in use, and %s is not installed: volumes with it cannot be"+
				" formatted, repaired or mounted on this machine", fileSystem, strings.Join(missing, ", ")),
				"apt-get install "+toolsOf[fileSystem].pkg)...)
		}
	}
	return or(problems, "those of %s are there", strings.Join(inUse, ", "))
}

func installed(program string) bool {
	if _, err := exec.LookPath(program); err == nil {
		return true
	}
	return slices.ContainsFunc([]string{"/usr/sbin", "/sbin"}, func(dir string) bool {
		_, err := exec.LookPath(filepath.Join(dir, program))
		return err == nil
	})
}

// controlGroups: the agent and the fence find the processes of workloads, plugins and drivers by them.
func (p *Patient) controlGroups(context.Context) []Finding {
	for _, m := range p.mounts {
		if m.FSType != "cgroup2" {
			continue
		}
		if m.Mountpoint == "/sys/fs/cgroup" {
			return ok("version 2")
		}
		return ok("versions 1 and 2")
	}
	if slices.ContainsFunc(p.mounts, func(m *mountInfo) bool { return m.FSType == "cgroup" }) {
		return one(Warn, "version 1 only: MemorySwapMax= of the agent's unit has no effect, so that keys in memory may be"+
			" swapped to a disk", "")
	}
	return one(Fail, "none is mounted: limits of plugins and drivers have no effect, and their children are not found", "")
}

const (
	// ledgerWanted is cluster.SpaceToGrow, in bytes. Package cluster would bring a database into the command.
	ledgerWanted = 64 << 20
	diskWanted   = 1 << 30 // bytes
	inodeWanted  = 5       // percent
)

func (p *Patient) disk(context.Context) []Finding {
	var s unix.Statfs_t
	if err := unix.Statfs(p.dataDir(), &s); err != nil {
		return skipped("%s: %v", p.dataDir(), err)
	}
	free, all := s.Bavail*uint64(s.Bsize), s.Blocks*uint64(s.Bsize)
	say := fmt.Sprintf("%s has %d MiB of %d left", p.dataDir(), free>>20, all>>20)
	find := "du -xh --max-depth=2 " + p.dataDir()
	inodes := fmt.Sprintf("%s has %d of %d inodes left", p.dataDir(), s.Ffree, s.Files)
	switch {
	case s.Flags&unix.ST_NOEXEC != 0:
		return one(Fail, p.dataDir()+" is on a mount with the option noexec: plugins and drivers run from their copies in it",
			"mount -o remount,exec "+p.dataDir()+" # and in /etc/fstab")
	case free < ledgerWanted:
		return one(Fail, say+": no claim can be taken", find)
	case s.Files > 0 && s.Ffree < ledgerWanted>>20:
		return one(Fail, inodes+": no claim can be taken", find)
	case free < diskWanted:
		return one(Warn, say, find)
	case s.Files > 0 && s.Ffree*100 < s.Files*inodeWanted:
		return one(Warn, inodes, find)
	default:
		return ok("%s", say)
	}
}

const (
	filesWanted    = 4096 // open files of the agent
	watchesWanted  = 128  // inotify instances of a user
	mountsWantedIn = 80   // percent of the kernel's limit that may be used
)

func (p *Patient) limits(context.Context) []Finding {
	var problems []Finding
	if p.status != nil {
		if n, err := openFiles(p.status.GetPid()); err == nil && n < filesWanted {
			problems = append(problems, one(Warn, fmt.Sprintf("the agent may have %d files open, and should %d: a call needs one"+
				" or two", n, filesWanted), "systemctl edit pannier  # LimitNOFILE=65536")...)
		}
	}
	if n, err := readNumber("/proc/sys/fs/inotify/max_user_instances"); err == nil && n < watchesWanted {
		problems = append(problems, one(Warn, fmt.Sprintf("a user may have %d inotify instances, and should %d: the agent watches"+
			" its plugin directory by one", n, watchesWanted),
			fmt.Sprintf("sysctl -w fs.inotify.max_user_instances=%d", watchesWanted))...)
	}
	if n, err := readNumber("/proc/sys/fs/mount-max"); err == nil && len(p.mounts)*100 > n*mountsWantedIn {
		problems = append(problems, one(Warn, fmt.Sprintf("%d of %d mounts are used", len(p.mounts), n),
			fmt.Sprintf("sysctl -w fs.mount-max=%d", 2*n))...)
	}
	return or(problems, "files, inotify and %d mounts are within them", len(p.mounts))
}

// openFiles is the soft limit of a process.
func openFiles(pid int64) (int, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, found := strings.CutPrefix(lines.Text(), "Max open files"); found {
			if fields := strings.Fields(rest); len(fields) > 0 {
				return strconv.Atoi(fields[0])
			}
		}
	}
	return 0, errors.New("there is no limit of open files")
}

func readNumber(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// securityModule: SELinux refuses containers the files of a volume that has no label for them.
func (p *Patient) securityModule(context.Context) []Finding {
	enforces, err := os.ReadFile("/sys/fs/selinux/enforce")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ok("no SELinux")
	case err != nil:
		return skipped("%v", err)
	case strings.TrimSpace(string(enforces)) != "1":
		return ok("SELinux only reports")
	default:
		return one(Warn, "SELinux is enforced: containers can use a volume only with a label that they may use, such as by"+
			" the mount option context=system_u:object_r:container_file_t:s0", "ausearch -m avc -ts recent")
	}
}

func (p *Patient) clock(context.Context) []Finding {
	if err := machine.CheckClock(claim.MaxDrift); err != nil {
		return one(Fail, err.Error(), "")
	}
	return ok("it is within what the fence counts on")
}

// run runs a program that mends something.
func run(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
