package chaos

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// envWriter is set in a writer process, to the text of its lines.
const envWriter = "PANNIER_CHAOS_WRITER"

// envWay is set in a writer process, to the way in which it has its volume.
const envWay = "PANNIER_CHAOS_WAY"

// written is the file in a volume that its writers append to.
const written = "written"

// lineLength is that of a writer's lines. None crosses the border of a page: a write that is killed may end there.
const lineLength = 64

// beat is the pause between two lines of a writer.
const beat = 4 * time.Millisecond

// boottime reads CLOCK_BOOTTIME, which all hosts of a test share and which leases are counted by.
func boottime() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}

// The ways in which a workload's process has its volume.
const (
	plainly = ""
	// contained is in a mount namespace that was given the volume, at the path that it has on the host.
	contained = "contained"
	// lazily is by a file that it opened before somebody unmounted the path lazily.
	lazily = "lazily"
)

// contain gives this process's own mount namespace the volume that is mounted at a path, at the same path of a root
// of its own.
func contain(path string) error {
	const aside = "/mnt"
	if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount(path, aside, "", unix.MS_BIND, ""),
		unix.Mount("root", filepath.Dir(path), "tmpfs", 0, ""), os.Mkdir(path, 0o700)); err != nil {
		return err
	}
	return unix.Mount(aside, path, "", unix.MS_MOVE, "")
}

// write is the process of a workload: it appends lines to its volume until it is killed, or its
// input ends with the test. It tells when it has opened the file.
func write(path, who string) error {
	if os.Getenv(envWay) == contained {
		if err := contain(filepath.Dir(path)); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fmt.Println("open")
	over := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(over)
	}()
	for {
		if _, err := fmt.Fprintf(f, "%-*s\n", lineLength-1, fmt.Sprint(boottime(), " ", who)); err != nil {
			return err
		}
		select {
		case <-over:
			return nil
		case <-time.After(beat):
		}
	}
}

// writers are the running writer processes.
type writers struct {
	// starting is held while a process is started, and by those who say that none is.
	starting sync.RWMutex
	gone     map[string]time.Time // when a node was lost, with all that ran on it

	mu        sync.Mutex
	all       map[*writer]bool
	unmounted []fenced // by themselves
}

type writer struct {
	volume, node string
	cmd          *exec.Cmd
	stdin        io.Closer
	ended        chan struct{}
}

// start starts a workload's process. If the volume is already unmounted because its node was cut
// off, the process ends at once. It returns nil if the node was lost since the run began.
func (w *writers) start(r *run, path, way string) (*writer, error) {
	w.starting.RLock()
	defer w.starting.RUnlock()
	if r.started.Before(w.gone[r.on.name]) {
		return nil, nil
	}
	cmd := exec.Command("/proc/self/exe", filepath.Join(path, written))
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s", envWriter, r.on.name, r.id), envWay+"="+way)
	if way == contained {
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if n, _ := stdout.Read(make([]byte, 1)); n > 0 && way == lazily && unix.Unmount(path, unix.MNT_DETACH) == nil {
		w.mu.Lock()
		w.unmounted = append(w.unmounted, fenced{Done: boottime(), Unmounted: []string{path}})
		w.mu.Unlock()
	}
	one := &writer{volume: r.volume.id, node: r.on.name, cmd: cmd, stdin: stdin, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // the exit status does not matter
		close(one.ended)
	}()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all[one] = true
	return one, nil
}

// lose ends all that runs on a node, and what its runs have not started yet.
func (w *writers) lose(node string) {
	w.starting.Lock()
	defer w.starting.Unlock()
	w.gone[node] = time.Now()
	w.endAll("", node)
}

// end kills a writer, if there is one, and waits for it.
func (w *writers) end(one *writer) {
	if one == nil {
		return
	}
	if err := one.cmd.Process.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		panic(err)
	}
	<-one.ended
	_ = one.stdin.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, one)
}

// endAll ends the writers of a volume on a node; without a name, those of all volumes.
func (w *writers) endAll(volume, node string) {
	w.mu.Lock()
	var these []*writer
	for one := range w.all {
		if (one.volume == volume || volume == "") && one.node == node {
			these = append(these, one)
		}
	}
	w.mu.Unlock()
	for _, one := range these {
		w.end(one)
	}
}
