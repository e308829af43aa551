package supervisor

import (
	"bufio"
	"context"
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
	"github.com/hashicorp/go-version"

	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/system/program"
)

// pluginRunner is go-plugin's view of a plugin's process: one that it starts, or one that it reattaches to.
type pluginRunner struct {
	spec   process.Spec
	runDir string // where the plugin's socket must be
	record *runRecord
	meter  *meter
	// promised is the version that the process has to report; nil: any, as of a process that an earlier host started.
	promised *version.Version
	// save records how to find the process. It is called before the start and after it.
	save func(process.Ref) error

	proc    *process.Process
	stopped bool     // by the host
	ownEnd  string   // how the process ended, if the host did not end it
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
		return program.ExplainExec(err, r.spec.Path)
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

// measure runs the meter until the process has ended or is detached.
func (r *pluginRunner) measure() {
	r.reading.Go(func() { r.meter.run(r.proc, r.detached) })
}

// maxHandshake bounds the handshake line, in bytes.
const maxHandshake = 4 << 10

// readHandshake passes the first line that the process prints to go-plugin, and discards the rest, so that the
// process never blocks on a full pipe.
func (r *pluginRunner) readHandshake() {
	r.reading.Go(func() {
		defer r.stdout.Close()
		buf := bufio.NewReaderSize(r.stdout, maxHandshake)
		text, err := buf.ReadSlice('\n')
		if len(text) > 0 {
			_, _ = r.firstIn.Write(text) // fails if go-plugin has given up
		}
		_ = r.firstIn.Close()
		if err == nil || errors.Is(err, bufio.ErrBufferFull) {
			_, _ = io.Copy(io.Discard, buf)
		}
	})
}

// Stdout returns the handshake line.
func (r *pluginRunner) Stdout() io.ReadCloser { return r.first }

// Stderr is empty: the process writes to a file, which the instance reads.
func (r *pluginRunner) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Diagnose adds nothing: the error of a failed start always quotes the log.
func (r *pluginRunner) Diagnose(context.Context) string { return "" }

// Name returns the program's path.
func (r *pluginRunner) Name() string { return r.spec.Path }

// ID returns the pid.
func (r *pluginRunner) ID() string {
	if r.proc == nil {
		return ""
	}
	return strconv.Itoa(r.proc.PID())
}

// Wait returns when the process has ended or is detached.
func (r *pluginRunner) Wait(context.Context) error {
	select {
	case <-r.proc.Done():
	case <-r.detached:
	}
	return nil
}

// Kill ends the process and its group at once. go-plugin also calls it when a start fails. A process that is up is
// asked to stop instead (generation.stop).
func (r *pluginRunner) Kill(ctx context.Context) error {
	if r.proc == nil {
		return r.stop(ctx)
	}
	// A connection usually breaks because the process is just ending.
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

// abort makes go-plugin give up waiting for the process. Unlike the other methods it may be called while go-plugin
// starts the process.
func (r *pluginRunner) abort() {
	r.once.Do(func() {
		close(r.detached)
		_ = r.first.Close()
	})
}

// detach stops watching the process, which may keep running.
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

// PluginToHost refuses an address that is not in the directory that the plugin was given.
func (r *pluginRunner) PluginToHost(network, addr string) (string, string, error) {
	if network != "unix" || filepath.Dir(addr) != r.runDir {
		return "", "", fmt.Errorf("the plugin listens on %s %q, not on a socket in %s", network, addr, r.runDir)
	}
	return network, addr, nil
}

// HostToPlugin is for go-plugin's broker, which the host does not use.
func (r *pluginRunner) HostToPlugin(network, addr string) (string, string, error) {
	return network, addr, nil
}

// explain adds to the error of a start how the process ended, if it did, and what it printed last.
func (i *instance) explain(err error, run *pluginRunner, logged int64) error {
	if run.proc == nil {
		return err
	}
	if run.ownEnd != "" {
		err = fmt.Errorf("the process ended: %s: %w", run.ownEnd, err)
	}
	if words := process.LastWords(i.logPath, logged); words != "" {
		err = fmt.Errorf("%w (it printed: %s)", err, words)
	}
	return err
}
