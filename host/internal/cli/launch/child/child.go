package child

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The child's ends of the pipes (exec.Cmd.ExtraFiles begin at 3).
const (
	ordersFD  = 3
	reportsFD = 4
	// namespaceFD is the mount namespace for a child that joins one.
	namespaceFD = 5
)

// Arg is the first argument that makes this program the child.
const Arg = "__exec"

// init runs the child instead of main.
func init() {
	if len(os.Args) > 1 && os.Args[1] == Arg {
		os.Exit(run())
	}
}

// run returns, with an exit code, only if the program could not be run.
func run() int {
	// The thread that calls exec carries the parent-death signal.
	runtime.LockOSThread()
	unix.CloseOnExec(ordersFD)
	unix.CloseOnExec(reportsFD)
	reports := json.NewEncoder(os.NewFile(reportsFD, "reports"))
	err := follow(json.NewDecoder(os.NewFile(ordersFD, "orders")), reports)
	failure := &Error{}
	if !errors.As(err, &failure) {
		failure = &Error{CodeNotRun, err.Error()}
	}
	// It fails only if the parent is gone.
	_ = reports.Encode(Report{Code: failure.Code, Error: failure.Text})
	return failure.Code
}

// follow executes the parent's orders; it returns only with an error.
func follow(orders *json.Decoder, reports *json.Encoder) error {
	var plan Plan
	if err := orders.Decode(&plan); err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	if err := enterNamespace(plan); err != nil {
		return err
	}
	if err := reports.Encode(Report{Ready: true}); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	var order struct {
		Go bool `json:"go"`
	}
	if err := orders.Decode(&order); err != nil || !order.Go {
		return fmt.Errorf("wait for the word to go: %w", err)
	}
	return execProgram(plan)
}

// enterNamespace creates the plan's mount namespace, or joins an existing one.
func enterNamespace(plan Plan) error {
	switch {
	case plan.Look:
		return nil
	case plan.Join:
		return join(namespaceFD)
	}
	if err := bindAll(plan.Mounts, plan.VolumesDir); err != nil {
		return err
	}
	return detachVolumes(plan.VolumesDir)
}

// join enters a mount namespace with this thread, which also calls exec. The kernel requires that the thread shares
// its root and working directory with no other, and moves both to the namespace's root (setns(2)).
func join(namespace int) error {
	unix.CloseOnExec(namespace)
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the working directory: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("have a working directory of its own: %w", err)
	}
	if err := unix.Setns(namespace, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("join the workload's mount namespace: %w", err)
	}
	if err := unix.Chdir(dir); err != nil {
		return fmt.Errorf("go to the working directory %s in the workload's mount namespace: %w", dir, err)
	}
	return nil
}

// execProgram drops to the program's user, for good, and executes the program.
func execProgram(plan Plan) error {
	if u := plan.User; u != nil {
		// In the caller's session it could type into the caller's terminal (TIOCSTI). A child that joins has its own.
		if _, err := unix.Setsid(); err != nil && !plan.Join {
			return fmt.Errorf("begin a session: %w", err)
		}
		if err := drop(u); err != nil {
			return fmt.Errorf("become user %d: %w", u.UID, err)
		}
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("give up new privileges: %w", err)
		}
	}
	// A change of user clears the parent-death signal of the thread.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("follow the parent's death: %w", err)
	}
	if os.Getppid() != plan.Parent {
		return fmt.Errorf("the parent has ended")
	}
	file, err := lookPath(plan.Command, plan.Env)
	switch {
	case err != nil:
	case plan.Look:
		if err = unix.Access(file, unix.X_OK); err == nil {
			os.Exit(0)
		}
		err = &fs.PathError{Op: "exec", Path: file, Err: err}
	default:
		err = &fs.PathError{
			Op: "exec", Path: file,
			Err: syscall.Exec(file, append([]string{plan.Command}, plan.Args...), plan.Env),
		}
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotInPath) {
		return &Error{CodeNotFound, fmt.Sprintf("command %q not found: %v", plan.Command, err)}
	}
	return &Error{CodeNotExecutable, fmt.Sprintf("command %q cannot be run: %v", plan.Command, err)}
}

func drop(u *User) error {
	groups := u.Groups
	if err := syscall.Setgroups(groups); err != nil {
		return fmt.Errorf("set groups %v: %w", groups, err)
	}
	if err := syscall.Setgid(u.GID); err != nil {
		return fmt.Errorf("set group %d: %w", u.GID, err)
	}
	return syscall.Setuid(u.UID)
}

var errNotInPath = errors.New("no executable file in")

// lookPath finds a command in the PATH of the program's environment, as execvp(3)
// does with the caller's.
func lookPath(command string, env []string) (string, error) {
	if strings.Contains(command, "/") {
		return command, nil
	}
	dirs := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for _, kv := range env {
		if value, ok := strings.CutPrefix(kv, "PATH="); ok {
			dirs = value
		}
	}
	var denied error
	for _, dir := range strings.Split(dirs, ":") {
		if !path.IsAbs(dir) {
			continue
		}
		file := path.Join(dir, command)
		info, err := os.Stat(file)
		if err != nil || info.IsDir() {
			continue
		}
		if err := unix.Access(file, unix.X_OK); err != nil {
			denied = &fs.PathError{Op: "exec", Path: file, Err: err}
			continue
		}
		return file, nil
	}
	if denied != nil {
		return "", denied
	}
	return "", fmt.Errorf("%w %s", errNotInPath, dirs)
}

// detachVolumes unmounts this namespace's copies of the host's mounts of volumes. Where
// the host's mounts do not propagate, the copies would keep other workloads' volumes
// in use for as long as the program runs.
func detachVolumes(dir string) error {
	if dir == "" {
		return nil
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read the mount table: %w", err)
	}
	for _, point := range slices.Backward(below(dir, string(table))) {
		err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		// The host may have unmounted it meanwhile, which propagates.
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("detach %s: %w", point, err)
		}
	}
	return nil
}

// unescape undoes how the kernel writes a path in a mount table (proc_pid_mountinfo(5)).
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// below returns the mount points of a mount table that are dir or lie below it, in the order of mounting. It is a
// reader of its own (see package mountuse) since this package imports next to nothing: it runs before other packages
// are initialized.
func below(dir, table string) (points []string) {
	for line := range strings.Lines(table) {
		if f := strings.Split(line, " "); len(f) > 4 { // any other white space is a part of a name
			if point := unescape.Replace(f[4]); strings.HasPrefix(point+"/", dir+"/") {
				points = append(points, point)
			}
		}
	}
	return points
}
