package cli

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/mountuse"
	"github.com/pannier/pannier/internal/procfs"
	"github.com/pannier/pannier/internal/trusted"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// The names by which mount(8) and umount(8) call this program.
const (
	mountHelper  = "mount.pannier"
	umountHelper = "umount.pannier"
)

// mountToken has the secret of the helpers' ACL token, where there is one: mount(8), fstab and systemd pass them no
// flags, and umount(8) no options.
const mountToken = "/etc/pannier/mount.token"

// The exit codes of mount(8) and umount(8).
const (
	exitMountUsage  = 1
	exitMountSystem = 2
	exitMountUser   = 8
	exitMountFailed = 32
)

const (
	// mountWait is how long a mount waits for a claim by default, and an unmount for the release.
	mountWait = 100 * time.Second
	// mountRetry is the pause between two attempts to claim a volume that others have.
	mountRetry = 500 * time.Millisecond
	// lazyWait is how long a lazy unmount waits for the release: processes may have the volume for long.
	lazyWait = time.Second
)

// mountMain is mount.pannier and umount.pannier. It returns the exit code.
func (a *App) mountMain(ctx context.Context, name string) int {
	run := a.mountVolume
	if name == umountHelper {
		run = a.umountVolume
	}
	if _, err := os.Stat(mountToken); err == nil && os.Getenv(tokenEnv) == "" {
		a.tokenFile = mountToken
	}
	err := run(ctx, a.Options.Args)
	if a.client != nil {
		_ = a.client.Close() // closing idle connections cannot fail
	}
	if err == nil {
		return ExitOK
	}
	a.Note("%s: %s", name, message(err))
	if hinted := (*hintError)(nil); errors.As(err, &hinted) {
		a.Note("%s: %s", name, hinted.hint)
	}
	if c := connect.CodeOf(err); c == connect.CodePermissionDenied || c == connect.CodeUnauthenticated {
		a.Note("%s: the ACL token to mount with is in %s, and needs the policy of docs/mount.md", name, mountToken)
	}
	code := (*codeError)(nil)
	switch {
	case errors.As(err, &code):
		return code.code
	case ctx.Err() != nil:
		return exitMountUser
	default:
		return exitMountFailed
	}
}

// wrongMount is an error of the command line, or of who may use it.
func wrongMount(format string, args ...any) error {
	return Coded(exitMountUsage, fmt.Errorf(format, args...))
}

// mountVolume mounts a volume.
func (a *App) mountVolume(ctx context.Context, args []string) error {
	r, err := parseMount(args)
	if err != nil || r.fake {
		return err
	}
	target, err := openMountPoint(r.target)
	if err != nil {
		return err
	}
	defer target.Close()
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	lock, err := lockMount(ctx, r.target)
	if err != nil {
		return fmt.Errorf("wait for another mount at %s: %w", r.target, err)
	}
	defer lock.Close()
	client, err := a.Client()
	if err != nil {
		return err
	}
	status, err := client.Agent.Status(ctx, &hostv1.StatusRequest{})
	if err != nil {
		return err
	}
	if err := inNamespaceOf(int(status.GetPid())); err != nil {
		return err
	}
	r.workload = mountWorkload(r.target, status.GetName())
	if done, err := alreadyMounted(ctx, client, r); done || err != nil {
		return err
	}
	w, err := a.claimMount(ctx, client, r)
	if err != nil {
		return err
	}
	if err := bindVolume(ctx, r, w.GetMounts()[0], target); err != nil {
		// Without a mount, the agent releases the workload when this process has ended.
		return fmt.Errorf("volume %q is claimed and cannot be mounted at %s: %w", r.source, r.target, err)
	}
	return nil
}

// openMountPoint opens a mount point, to which the volume is mounted whatever has the path then. It waits for no
// automount there.
func openMountPoint(target string) (*os.File, error) {
	if os.Geteuid() != 0 {
		return nil, wrongMount(
			"only root can mount volumes: run it by sudo, or let a unit or an fstab line of the host mount it")
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, target,
		&unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, wrongMount("mount point %s does not exist: run mkdir -p %s", target, target)
	case errors.Is(err, unix.ELOOP):
		named, err := filepath.EvalSymlinks(target)
		return nil, errors.Join(wrongMount("mount point %s is or passes a symbolic link: name %s", target, named), err)
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: target, Err: err}
	}
	f := os.NewFile(uintptr(fd), target)
	info, err := f.Stat()
	if err == nil {
		err = trusted.Dir(filepath.Dir(target))
	}
	switch {
	case target == "/":
		err = wrongMount("a volume cannot be mounted at /")
	case err != nil:
		err = wrongMount("mount point %s is not safe: %w", target, err)
	case !info.IsDir():
		err = wrongMount("mount point %s is not a directory", target)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// mountLocks is the file of the locks of mount points. A mount point cannot be locked itself: where systemd mounts
// automatically, to open it would wait for the mount.
const mountLocks = "/run/pannier/mount.lock"

// lockPause is the pause between two attempts to lock a mount point.
const lockPause = 50 * time.Millisecond

// lockMount waits until no other helper mounts at a path, such as mount -a and an automount. To close the file ends the
// lock.
func lockMount(ctx context.Context, target string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(mountLocks), 0o755); err != nil { //nolint:gosec // as the agent makes it
		return nil, err
	}
	f, err := os.OpenFile(mountLocks, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(target))
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(binary.BigEndian.Uint32(sum[:])), Len: 1}
	for {
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			return nil, errors.Join(err, f.Close())
		}
		select {
		case <-time.After(lockPause):
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), f.Close())
		}
	}
}

// inNamespaceOf fails if the agent would not see what this process mounts.
func inNamespaceOf(agent int) error {
	ours, err := procfs.MountNamespace(procfs.Dir(os.Getpid()))
	if err != nil {
		return err
	}
	theirs, err := procfs.MountNamespace(procfs.Dir(agent))
	if err != nil {
		return fmt.Errorf("the agent (pid %d) is not found: mount on its host, not in a container: %w", agent, err)
	}
	if ours != theirs {
		return Hinted(errors.New("this process has a mount namespace of its own, and the agent would not see the mount"),
			"mount in the agent's: nsenter --target %d --mount mount ...", agent)
	}
	return nil
}

// alreadyMounted reports whether the volume is mounted at the target, as after an earlier mount -a. It fails if
// something else is.
func alreadyMounted(ctx context.Context, client *api.Client, r *mountRequest) (bool, error) {
	table, err := mountuse.Read(mountuse.Self)
	if err != nil {
		return false, err
	}
	there := mountuse.At(table, r.target)
	if there == nil || there.FSType == "autofs" {
		return false, nil
	}
	resp, err := client.Workloads.GetWorkload(ctx, &hostv1.GetWorkloadRequest{Namespace: r.namespace, Id: r.workload})
	var ours []*hostv1.Mount
	switch {
	case err == nil:
		ours = resp.GetWorkload().GetMounts()
	case connect.CodeOf(err) != connect.CodeNotFound:
		return false, err
	}
	for _, m := range ours {
		published := mountuse.At(table, m.GetHostPath())
		if published == nil || !mountuse.Shows(there, published) {
			continue
		}
		if m.GetVolume() == r.source && m.GetReadOnly() == r.readOnly {
			return true, nil
		}
		return false, Hinted(fmt.Errorf("%s has volume %q of namespace %q already (read-only: %t)", r.target, m.GetVolume(),
			r.namespace, m.GetReadOnly()), "unmount it first: umount %s", r.target)
	}
	return false, Hinted(fmt.Errorf("something else is mounted at %s: %s (%s)", r.target, there.Source, there.FSType),
		"unmount it first: umount %s", r.target)
}

// claimMount starts the mount's workload, and waits while others have the volume.
func (a *App) claimMount(ctx context.Context, client *api.Client, r *mountRequest) (*hostv1.Workload, error) {
	volume := &hostv1.VolumeRequest{
		Name: "volume", Source: r.source, ReadOnly: r.readOnly, AccessMode: r.access, AttachmentMode: string(claim.FileSystem),
		Destination: r.target,
	}
	if len(r.driver) > 0 {
		volume.MountOptions = &hostv1.MountOptions{MountFlags: r.driver}
	}
	req := &hostv1.StartWorkloadRequest{
		Spec: &hostv1.WorkloadSpec{
			Namespace: r.namespace, Id: r.workload, Volumes: []*hostv1.VolumeRequest{volume},
		},
		ReleaseWithCaller: true, MountedAt: r.target,
	}
	var refused error
	again, told := false, false
	for {
		w, err := startMount(ctx, client, req)
		if err == nil {
			return w, nil
		}
		if ctx.Err() == nil && connect.CodeOf(err) != connect.CodeDeadlineExceeded { // the agent's timer may fire first
			waits, others := waitsForOthers(ctx, client, r, err)
			if again = !waits && !again && connect.CodeOf(err) == connect.CodeFailedPrecondition; again {
				waits = true // others may have released it since
			}
			if !waits && connect.CodeOf(err) == connect.CodeNotFound {
				return nil, Hinted(err, "the volumes: pannier volume status -namespace %s", r.namespace)
			}
			if !waits {
				return nil, err
			}
			if others && !told {
				told = true
				a.Note("%s: waiting for at most %s (option timeout): %s", mountHelper, r.timeout, message(err))
			}
			refused = err
		}
		select {
		case <-time.After(mountRetry):
			continue
		case <-ctx.Done():
		}
		if refused == nil || errors.Is(context.Cause(ctx), context.Canceled) {
			return nil, context.Cause(ctx)
		}
		return nil, Hinted(fmt.Errorf("not within %s: %w", r.timeout, refused),
			"who has it: pannier volume explain -namespace %s %s", r.namespace, r.source)
	}
}

// waitsForOthers reports whether a start that was refused may succeed later, and whether others have the volume.
func waitsForOthers(ctx context.Context, client *api.Client, r *mountRequest, err error) (waits, others bool) {
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeAborted:
		return true, false
	case connect.CodeFailedPrecondition:
	default:
		return false, false
	}
	now, err := client.Volumes.GetVolume(ctx, &hostv1.GetVolumeRequest{Namespace: r.namespace, Id: r.source})
	if err != nil {
		return false, false
	}
	return len(now.GetVolume().GetClaims()) > 0, true
}

func startMount(ctx context.Context, client *api.Client, req *hostv1.StartWorkloadRequest,
) (w *hostv1.Workload, err error) {
	stream, err := client.Workloads.StartWorkload(ctx, req)
	if err != nil {
		return nil, err
	}
	if w, _, err = receive(stream, &progress{w: io.Discard}); err != nil {
		return nil, err
	}
	if len(w.GetMounts()) != 1 {
		return nil, fmt.Errorf("the agent's answer to the start of %q has %d mounts", req.GetSpec().GetId(),
			len(w.GetMounts()))
	}
	return w, nil
}

// bindVolume mounts what the agent has published. mount(8), which would look the target up again, only notes in
// /run/mount/utab that umount(8) has to call the helper, and options that systemd reads back. Without _netdev it would
// take what it finds for a local mount, and a boot would never end. The volume's own nosuid and nodev stay.
func bindVolume(ctx context.Context, r *mountRequest, m *hostv1.Mount, target *os.File) error {
	var attr unix.MountAttr
	for _, flag := range r.flags {
		attr.Attr_set |= perMount[flag].set
		attr.Attr_clr |= perMount[flag].clear
	}
	if r.readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if !m.GetSuid() {
		attr.Attr_set |= unix.MOUNT_ATTR_NOSUID
	}
	if !m.GetDev() {
		attr.Attr_set |= unix.MOUNT_ATTR_NODEV
	}
	source, err := unix.OpenTree(unix.AT_FDCWD, m.GetHostPath(), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return &fs.PathError{Op: "open the mount", Path: m.GetHostPath(), Err: err}
	}
	defer unix.Close(source)
	if err := unix.MountSetattr(source, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("set the flags %q: %w", r.flags, err)
	}
	if err := unix.MoveMount(source, "", int(target.Fd()), "",
		unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return err
	}
	noted := strings.Join(append([]string{"helper=pannier", "_netdev"}, r.noted...), ",")
	err = runMount(ctx, "mount", "--fake", "--internal-only", "--bind", "-o", noted, "--", m.GetHostPath(), r.target)
	if err != nil {
		err = errors.Join(err, unix.Unmount(fmt.Sprintf("/proc/self/fd/%d", source), unix.MNT_DETACH))
	}
	return err
}

// runMount runs mount(8) or umount(8) without a helper.
func runMount(ctx context.Context, program string, args ...string) error {
	path, err := lookSystem(program)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = []string{"LC_ALL=C"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// lookSystem finds a program of the system, whatever PATH is.
func lookSystem(program string) (string, error) {
	for _, dir := range []string{"/usr/bin", "/bin", "/usr/sbin", "/sbin"} {
		if path := filepath.Join(dir, program); unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", Coded(exitMountSystem, fmt.Errorf("%s is not installed (util-linux)", program))
}

// umountVolume unmounts a volume, and waits until its claim is released.
func (a *App) umountVolume(ctx context.Context, args []string) error {
	r, err := parseUmount(args)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return wrongMount("only root can unmount volumes: run it by sudo")
	}
	if err := runMount(ctx, "umount", append(r.flags, "--internal-only", "--", r.target)...); err != nil {
		return err
	}
	if err := a.releaseMount(ctx, r); err != nil {
		// The agent has seen that it is not mounted, or sees it when it is back.
		a.Note("%s: %s is unmounted; the agent goes on to release the volume: %s", umountHelper, r.target, message(err))
	}
	return nil
}

// releaseMount waits until the workload of a mount is released.
func (a *App) releaseMount(ctx context.Context, r *umountRequest) error {
	wait := mountWait
	if r.lazy {
		wait = lazyWait
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	client, err := a.Client()
	if err != nil {
		return err
	}
	within, enough := context.WithTimeoutCause(ctx, answerWait, errSilent)
	defer enough()
	all, err := client.Workloads.ListWorkloads(within, &hostv1.ListWorkloadsRequest{Namespace: "*"})
	if err != nil {
		return cmp.Or(context.Cause(within), err)
	}
	for _, w := range all.GetWorkloads() {
		spec := w.GetSpec()
		if spec.GetId() != mountWorkload(r.target, w.GetNode()) || ended(w) {
			continue
		}
		_, _, err := stopOnce(ctx, client, &progress{w: io.Discard},
			&hostv1.StopWorkloadRequest{Namespace: spec.GetNamespace(), Id: spec.GetId()}, answerWait)
		if err != nil && connect.CodeOf(err) != connect.CodeNotFound {
			return err
		}
	}
	return nil
}

// mountRequest is what mount(8) wants of its helper: mount.pannier SOURCE TARGET [-sfnv] [-N NAMESPACE] [-o OPTIONS]
// [-t TYPE].
type mountRequest struct {
	source, target, namespace, access string
	readOnly, fake                    bool
	timeout                           time.Duration
	// flags are for the mount at the target, driver for the driver.
	flags, driver []string
	// noted are the options that mount(8) and systemd read back from /run/mount/utab.
	noted    []string
	workload string
}

// umountRequest is what umount(8) wants: umount.pannier TARGET [-flnrv] [-N NAMESPACE] [-t TYPE].
type umountRequest struct {
	target string
	lazy   bool
	flags  []string
}

// mountAttr are the attributes of a mount that an option sets and clears (mount_setattr(2)).
type mountAttr struct{ set, clear uint64 }

// perMount are the options of mount(8) that concern one mount of a file system, and options that only mount(8) reads.
var (
	perMount = map[string]mountAttr{
		"nosuid": {set: unix.MOUNT_ATTR_NOSUID}, "nodev": {set: unix.MOUNT_ATTR_NODEV},
		"noexec": {set: unix.MOUNT_ATTR_NOEXEC}, "exec": {clear: unix.MOUNT_ATTR_NOEXEC},
		"nodiratime": {set: unix.MOUNT_ATTR_NODIRATIME}, "diratime": {clear: unix.MOUNT_ATTR_NODIRATIME},
		"noatime":     {unix.MOUNT_ATTR_NOATIME, unix.MOUNT_ATTR__ATIME},
		"strictatime": {unix.MOUNT_ATTR_STRICTATIME, unix.MOUNT_ATTR__ATIME},
		"atime":       {clear: unix.MOUNT_ATTR__ATIME}, "nostrictatime": {clear: unix.MOUNT_ATTR__ATIME},
		"relatime": {clear: unix.MOUNT_ATTR__ATIME}, "norelatime": {clear: unix.MOUNT_ATTR__ATIME}, // the kernel's default
	}
	onlyOfMount = []string{
		"defaults", "_netdev", "rw", "suid", "dev", "auto", "noauto", "nofail", "user", "nouser", "users", "nousers", "owner",
		"noowner", "group", "nogroup", "silent", "loud",
	}
	refusedByMount = []string{"bind", "rbind", "move", "remount", "loop", "helper", "uhelper"}
)

// helperArgs splits a helper's arguments: letters without a value are in flags.
func helperArgs(args []string, withValue string) (names []string, flags string, values map[rune]string, err error) {
	values = map[rune]string{}
	for n := 0; n < len(args); n++ {
		arg := args[n]
		if len(arg) < 2 || arg[0] != '-' {
			names = append(names, arg)
			continue
		}
		for at, letter := range arg[1:] {
			if !strings.ContainsRune(withValue, letter) {
				flags += string(letter)
				continue
			}
			value := arg[at+2:]
			if value == "" {
				if n++; n == len(args) {
					return nil, "", nil, wrongMount("-%c needs a value", letter)
				}
				value = args[n]
			}
			if old := values[letter]; old != "" {
				value = old + "," + value
			}
			values[letter] = value
			break
		}
	}
	if _, is := values['N']; is {
		return nil, "", nil, wrongMount("-N: volumes are mounted in the agent's mount namespace")
	}
	return names, flags, values, nil
}

func parseMount(args []string) (*mountRequest, error) {
	names, flags, values, err := helperArgs(args, "oNt")
	if err != nil {
		return nil, err
	}
	if len(names) != 2 {
		return nil, wrongMount("want a volume and a mount point, such as: mount -t pannier pannier:data /data")
	}
	r := &mountRequest{
		source: strings.TrimPrefix(names[0], "pannier:"), namespace: claim.DefaultNamespace, timeout: mountWait,
		fake: strings.Contains(flags, "f"),
	}
	if r.target, err = filepath.Abs(names[1]); err != nil {
		return nil, err
	}
	if strings.HasPrefix(r.source, "/") {
		return nil, wrongMount("the source %q is not the id of a volume: write pannier:ID, since mount(8) makes a path of the "+
			"name of a file in the present directory", names[0])
	}
	if err := claim.CheckVolumeID(r.source); err != nil {
		return nil, wrongMount("the source %q is not the id of a volume: %w", names[0], err)
	}
	for option := range strings.SplitSeq(values['o'], ",") {
		if err := r.option(option); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// option takes one option. An unknown option is for the driver.
func (r *mountRequest) option(option string) (err error) {
	name, value, valued := strings.Cut(option, "=")
	switch {
	case strings.HasPrefix(name, "x-mount."): // mount(8) has done it
	case strings.HasPrefix(name, "x-"):
		r.noted = append(r.noted, option)
	case option == "" || slices.Contains(onlyOfMount, option) || name == "comment":
	case option == "ro":
		r.readOnly = true
	case name == "namespace" && valued:
		if err := claim.CheckID(value); err != nil {
			return wrongMount("option namespace: %w", err)
		}
		r.namespace = value
	case name == "access" && valued:
		if !slices.Contains(claim.AccessModes, claim.AccessMode(value)) {
			return wrongMount("option access: unknown access mode %q, want one of %q", value, claim.AccessModes)
		}
		r.access = value
	case name == "timeout" && valued:
		if r.timeout, err = mountTimeout(value); err != nil {
			return err
		}
	case slices.Contains(refusedByMount, name):
		return wrongMount("option %s is not possible: unmount the volume, and mount it again as it should be", name)
	case perMount[option] != (mountAttr{}):
		r.flags = append(r.flags, option)
	default:
		r.driver = append(r.driver, option)
	}
	return nil
}

// mountTimeout reads a number of seconds, or a duration as Go writes it.
func mountTimeout(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil {
		d, err = time.ParseDuration(value + "s")
	}
	if err != nil || d <= 0 {
		return 0, wrongMount("option timeout: %q is not a positive number of seconds, or a duration such as 2m", value)
	}
	return d, nil
}

func parseUmount(args []string) (*umountRequest, error) {
	names, flags, _, err := helperArgs(args, "Nt")
	if err != nil {
		return nil, err
	}
	if len(names) != 1 {
		return nil, wrongMount("want a mount point, such as: umount /data")
	}
	r := &umountRequest{lazy: strings.Contains(flags, "l")}
	if r.target, err = filepath.Abs(names[0]); err != nil {
		return nil, err
	}
	for _, letter := range flags {
		if strings.ContainsRune("flr", letter) {
			r.flags = append(r.flags, "-"+string(letter))
		}
	}
	return r, nil
}

// mountWorkload returns the id of the workload that has the volume mounted at a path of a node: the path as systemd
// escapes it (systemd-escape(1)), with _ for \, which ids do not have.
func mountWorkload(target, node string) string {
	var path strings.Builder
	for n, c := range []byte(strings.Trim(target, "/")) {
		switch {
		case c == '/':
			path.WriteByte('-')
		case c == '.' && n > 0, '0' <= c && c <= '9', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
			path.WriteByte(c)
		default:
			fmt.Fprintf(&path, "_x%02x", c)
		}
	}
	id := "mount." + path.String() + "." + node
	if len(id) > claim.MaxID {
		sum := sha256.Sum256([]byte(id))
		tail := "." + hex.EncodeToString(sum[:8])
		id = id[:claim.MaxID-len(tail)] + tail
	}
	return id
}
