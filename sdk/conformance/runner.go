package conformance

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// program is go-plugin's view of a process. The process leads its own process group and logs to a file.
type program struct {
	path   string
	args   []string
	env    []string
	files  []*os.File // its descriptors from 3 on
	log    string     // the file for its standard error
	socket string     // the directory that its socket must be in
	mark   string     // in the environment of the process and its children

	cmd    *exec.Cmd
	stdout *os.File
	born   uint64        // start time in clock ticks since boot
	done   chan struct{} // closed when it has ended
}

func (p *program) Start(context.Context) error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the plugin's log: %w", err)
	}
	defer log.Close()
	reader, writer, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make the handshake's pipe: %w", err)
	}
	defer writer.Close()
	p.cmd = &exec.Cmd{
		Path: p.path, Args: append([]string{p.path}, p.args...), Env: append(p.env, envMark+"="+p.mark), Dir: "/",
		Stdout: writer, Stderr: log, ExtraFiles: p.files,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}, // also if the kit is killed
	}
	if err := p.start(); err != nil {
		_ = reader.Close()
		return err
	}
	p.stdout, p.born, p.done = reader, statOf(p.pid()).start, make(chan struct{})
	go func() {
		_ = p.cmd.Wait() // the state has the result
		close(p.done)
	}()
	return nil
}

// start retries while another process that is just being forked has the binary open for writing (ETXTBSY,
// execve(2)), because tests build a binary and run it at once.
func (p *program) start() error {
	for try := 0; ; try++ {
		cmd := *p.cmd
		err := cmd.Start()
		if err == nil {
			*p.cmd = cmd
			return nil
		}
		if try == 100 || !strings.Contains(err.Error(), unix.ETXTBSY.Error()) {
			return fmt.Errorf("start the binary: %w", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// ended waits up to within and returns whether the process has ended.
func (p *program) ended(within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
		return false
	}
}

// exit describes how the process ended. It must have ended.
func (p *program) exit() string { return p.cmd.ProcessState.String() }

func (p *program) pid() int { return p.cmd.Process.Pid }

// family returns the running processes that it has started, including itself.
func (p *program) family() []int { return marked(p.mark, p.pid(), p.born) }

// kill ends the process, its group and all processes that carry its mark.
func (p *program) kill() {
	if p.done == nil {
		return
	}
	for {
		left := p.family()
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if len(left) == 0 {
			break
		}
		time.Sleep(time.Millisecond) // a killed process exists until it is reaped
	}
	<-p.done
	_ = p.stdout.Close()
}

// die kills the process alone, as a crash would, and waits until it is gone, so that its successor does not find
// it dying.
func (p *program) die(ctx context.Context) error {
	if err := unix.Kill(p.pid(), unix.SIGKILL); err != nil {
		return fmt.Errorf("kill its process: %w", err)
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("it has been killed and is still there: %w", ctx.Err())
	}
}

// The remaining methods implement go-plugin's runner.Runner.

func (p *program) Wait(context.Context) error                       { <-p.done; return nil }
func (p *program) Kill(context.Context) error                       { p.kill(); return nil }
func (p *program) Stdout() io.ReadCloser                            { return p.stdout }
func (p *program) Stderr() io.ReadCloser                            { return io.NopCloser(strings.NewReader("")) }
func (p *program) Diagnose(context.Context) string                  { return "" }
func (p *program) Name() string                                     { return p.path }
func (p *program) HostToPlugin(n, a string) (string, string, error) { return n, a, nil }

func (p *program) ID() string {
	if p.done == nil {
		return ""
	}
	return strconv.Itoa(p.pid())
}

// PluginToHost refuses an address that is not a socket in the directory that the plugin was given.
func (p *program) PluginToHost(network, addr string) (string, string, error) {
	if network != "unix" || !strings.HasPrefix(addr, p.socket+"/") {
		return "", "", fmt.Errorf("it listens on %s %q, not on a unix socket in %s (PLUGIN_UNIX_SOCKET_DIR)", network, addr,
			p.socket)
	}
	return network, addr, nil
}
