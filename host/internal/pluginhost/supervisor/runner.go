package supervisor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-plugin/runner"

	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/host/internal/system/process"
)

// pluginRunner is go-plugin's view of a plugin's process: one that it starts, or
// one that it is attached to again.
type pluginRunner struct {
	spec   process.Spec
	runDir string // where the plugin's socket must be
	record *runRecord
	meter  *meter
	// save persists how to find the process: before it is started, and after.
	save func(process.Ref) error

	proc    *process.Process
	stopped bool     // by us
	ownEnd  string   // how the process ended, where that was not our doing
	stdout  *os.File // reading end
	reading sync.WaitGroup

	first    *io.PipeReader // the handshake line, for go-plugin
	firstIn  *io.PipeWriter
	detached chan struct{}
	once     sync.Once
}

var _ runner.Runner = (*pluginRunner)(nil)

func newRunner() *pluginRunner {
	r := &pluginRunner{detached: make(chan struct{})}
	r.first, r.firstIn = io.Pipe()
	return r
}

// Start starts the process. Nothing of it is left when it fails.
func (r *pluginRunner) Start(ctx context.Context) error {
	if err := r.save(r.spec.Intent()); err != nil {
		return err
	}
	failpoint.Here("process", "intended")
	reader, writer, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make the handshake's pipe: %w", err)
	}
	r.spec.Stdout = writer
	proc, err := process.Start(r.spec)
	_ = writer.Close()
	if err != nil {
		_ = reader.Close()
		return err
	}
	failpoint.Here("process", "forked")
	r.proc, r.stdout = proc, reader
	r.readHandshake()
	r.measure()
	if err := r.save(proc.Ref()); err != nil {
		return errors.Join(err, r.Kill(ctx))
	}
	return nil
}

// measure looks at what the process uses, until it has ended or is let go of.
func (r *pluginRunner) measure() {
	r.reading.Go(func() { r.meter.run(r.proc, r.detached) })
}

// maxHandshake is the longest handshake line in bytes that makes sense.
const maxHandshake = 4 << 10

// readHandshake gives go-plugin the first line that the process prints, and
// throws the rest away: a process must not block because it prints.
func (r *pluginRunner) readHandshake() {
	r.reading.Go(func() {
		defer r.stdout.Close()
		buf := bufio.NewReaderSize(r.stdout, maxHandshake)
		text, err := buf.ReadSlice('\n')
		if len(text) > 0 {
			_, _ = r.firstIn.Write(text) // fails when go-plugin has given up
		}
		_ = r.firstIn.Close()
		if err == nil || errors.Is(err, bufio.ErrBufferFull) {
			_, _ = io.Copy(io.Discard, buf)
		}
	})
}

// Stdout is the handshake line.
func (r *pluginRunner) Stdout() io.ReadCloser { return r.first }

// Stderr is empty: the process writes to a file, which the instance reads.
func (r *pluginRunner) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Diagnose has nothing to add: a failed start quotes the log anyway.
func (r *pluginRunner) Diagnose(context.Context) string { return "" }

// Name of the program.
func (r *pluginRunner) Name() string { return r.spec.Path }

// ID is the pid.
func (r *pluginRunner) ID() string {
	if r.proc == nil {
		return ""
	}
	return strconv.Itoa(r.proc.PID())
}

// Wait returns when the process has ended, or when we let go of it.
func (r *pluginRunner) Wait(context.Context) error {
	select {
	case <-r.proc.Done():
	case <-r.detached:
	}
	return nil
}

// Kill ends the process and its group at once. It is called, by go-plugin too,
// when a start fails; a process that is up is asked to stop (generation.stop).
func (r *pluginRunner) Kill(ctx context.Context) error {
	if r.proc == nil {
		return r.stop(ctx)
	}
	// A connection that breaks is mostly a process that is just ending.
	select {
	case <-r.proc.Done():
		if !r.stopped {
			r.ownEnd = r.proc.Exit()
		}
	case <-r.detached:
	case <-time.After(50 * time.Millisecond):
	}
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	return r.stop(ctx)
}

// stop ends the process and its group, with SIGKILL when ctx ends.
func (r *pluginRunner) stop(ctx context.Context) error {
	var err error
	if r.proc != nil {
		r.stopped = true
		err = r.proc.Stop(ctx)
	}
	r.detach()
	return err
}

// abort makes go-plugin give up waiting for the process. Unlike the others it may
// be called while go-plugin starts the process.
func (r *pluginRunner) abort() {
	r.once.Do(func() {
		close(r.detached)
		_ = r.first.Close()
	})
}

// detach lets go of the process, which may run on.
func (r *pluginRunner) detach() {
	r.abort()
	if r.stdout != nil {
		_ = r.stdout.Close()
	}
	if r.proc != nil {
		r.proc.Release()
	}
	r.reading.Wait()
}

// PluginToHost refuses an address that is not the socket we asked for.
func (r *pluginRunner) PluginToHost(network, addr string) (string, string, error) {
	if network != "unix" || filepath.Dir(addr) != r.runDir {
		return "", "", fmt.Errorf("the plugin listens on %s %q, not on a socket in %s", network, addr, r.runDir)
	}
	return network, addr, nil
}

// HostToPlugin is for go-plugin's broker, which we do not use.
func (r *pluginRunner) HostToPlugin(network, addr string) (string, string, error) {
	return network, addr, nil
}

// maxQuoted bounds what is quoted of a plugin's log, in bytes.
const maxQuoted = 8 << 10

func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// lastOutput is what a process complained of last in what it printed to a log
// after from: a panic, else its last line, unless that is everyday logging.
func lastOutput(path string, from int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	size := fileSize(path)
	if size < from {
		from = 0 // it was emptied meanwhile
	}
	from = max(from, size-maxQuoted)
	data, err := io.ReadAll(io.NewSectionReader(f, from, size-from))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	for _, l := range lines {
		if strings.HasPrefix(l, "panic: ") || strings.HasPrefix(l, "fatal error: ") {
			return l
		}
	}
	last := lines[len(lines)-1]
	var entry struct {
		Level   string `json:"@level"`
		Message string `json:"@message"`
		Error   string `json:"error"`
	}
	switch {
	case json.Unmarshal([]byte(last), &entry) != nil || entry.Message == "":
		return last
	case entry.Level != "warn" && entry.Level != "error":
		return ""
	case entry.Error != "":
		return entry.Message + ": " + entry.Error
	default:
		return entry.Message
	}
}

// explain adds to the error of a start how the process ended, if it did, and what
// it printed last.
func (i *instance) explain(err error, run *pluginRunner, logged int64) error {
	if run.proc == nil {
		return err
	}
	if run.ownEnd != "" {
		err = fmt.Errorf("the process ended: %s: %w", run.ownEnd, err)
	}
	if words := lastOutput(i.logPath, logged); words != "" {
		err = fmt.Errorf("%w (it printed: %s)", err, words)
	}
	return err
}
