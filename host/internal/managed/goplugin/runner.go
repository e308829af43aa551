package goplugin

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

	"github.com/hashicorp/go-plugin/runner"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/host/internal/system/process"
)

// pluginRunner is go-plugin's view of a plugin's process: one that it starts, or one that it reattaches to.
type pluginRunner struct {
	process *managed.Process
	spec    process.Spec
	fork    func(process.Spec) error
	address string

	stdout  *os.File // reading end
	reading sync.WaitGroup

	first    *io.PipeReader // the handshake line, for go-plugin
	firstIn  *io.PipeWriter
	detached chan struct{}
	once     sync.Once
}

var _ runner.Runner = (*pluginRunner)(nil)

func newRunner(p *managed.Process) *pluginRunner {
	r := &pluginRunner{process: p, detached: make(chan struct{})}
	r.first, r.firstIn = io.Pipe()
	return r
}

// Start starts the process.
func (r *pluginRunner) Start(context.Context) error {
	reader, writer, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make the handshake's pipe: %w", err)
	}
	r.spec.Stdout, r.stdout = writer, reader
	err = r.fork(r.spec)
	_ = writer.Close()
	r.readHandshake()
	return err
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

// Stderr is empty: the process writes to a file.
func (r *pluginRunner) Stderr() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }

// Diagnose adds nothing: the error of a failed start always quotes the log.
func (r *pluginRunner) Diagnose(context.Context) string { return "" }

// Name returns the program's path.
func (r *pluginRunner) Name() string { return r.spec.Path }

// ID returns the pid.
func (r *pluginRunner) ID() string { return strconv.Itoa(r.process.PID()) }

// Wait returns when the process has ended or is detached.
func (r *pluginRunner) Wait(context.Context) error {
	select {
	case <-r.process.Done():
	case <-r.detached:
	}
	return nil
}

// Kill ends the process and its group at once. go-plugin calls it when a start fails. A process that is up is asked to
// stop instead (managed.Conn).
func (r *pluginRunner) Kill(ctx context.Context) error {
	err := r.process.Kill(ctx)
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

// detach stops reading what the process prints.
func (r *pluginRunner) detach() {
	r.abort()
	if r.stdout != nil {
		_ = r.stdout.Close()
	}
	r.reading.Wait()
}

// PluginToHost refuses an address that is not in the directory that the plugin was given.
func (r *pluginRunner) PluginToHost(network, addr string) (string, string, error) {
	if dir := r.process.Run.Dir; network != "unix" || filepath.Dir(addr) != dir {
		return "", "", fmt.Errorf("the plugin listens on %s %q, not on a socket in %s", network, addr, dir)
	}
	return network, addr, nil
}

// HostToPlugin is for go-plugin's broker, which the host does not use.
func (r *pluginRunner) HostToPlugin(network, addr string) (string, string, error) {
	return network, addr, nil
}
