package consul

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testnet"
)

// Server is one server of a cluster.
type Server struct {
	Name  string
	Ports Ports

	bin string
	id  string // Consul's node id, kept when the state is lost
	dir string

	host   *testnet.Host // nil: the test's own network
	client bool          // a client agent

	cmd    *exec.Cmd
	ended  chan struct{} // closed when the process has been waited for
	logged int           // bytes in the log before the process was started
}

// PID of the running server; 0 if it does not run.
func (s *Server) PID() int {
	if !s.running() {
		return 0
	}
	return s.cmd.Process.Pid
}

// Log returns what the server has logged since its first start.
func (s *Server) Log() string {
	log, _ := os.ReadFile(s.logFile())
	return string(log)
}

func (s *Server) logFile() string { return filepath.Join(s.dir, "log") }
func (s *Server) dataDir() string { return filepath.Join(s.dir, "data") }

// start starts the server's process and does not wait.
func (s *Server) start(config map[string]any) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("make the server's folder: %w", err)
	}
	text, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return fmt.Errorf("write the server's configuration: %w", err)
	}
	file := filepath.Join(s.dir, "server.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return fmt.Errorf("write the server's configuration: %w", err)
	}
	s.logged = len(s.Log())
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the server's log: %w", err)
	}
	defer func() { _ = log.Close() }() // the process has its own
	args := []string{"agent", "-config-file", file}
	if !s.client {
		args = append(args, "-server")
	}
	if extra := filepath.Join(s.dir, "extra.hcl"); exists(extra) {
		args = append(args, "-config-file", extra)
	}
	cmd := exec.Command(s.bin, args...)
	cmd.Dir = s.dir
	cmd.Env = cleanEnv()
	cmd.Stdout, cmd.Stderr = log, log
	// If the test is killed, its servers are too. The kernel does this when the forking thread ends, so this
	// thread waits.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		run := func() error {
			err := cmd.Start()
			started <- err
			if err == nil {
				_ = cmd.Wait()
			}
			close(ended)
			return nil
		}
		if s.host == nil {
			_ = run()
		} else if err := s.host.Do(run); err != nil {
			started <- err
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start Consul: %w", err)
	}
	s.cmd, s.ended = cmd, ended
	return nil
}

// bind is the address at which other agents reach it.
func (s *Server) bind() string {
	if s.host == nil {
		return "127.0.0.1"
	}
	return s.host.Addr.String()
}

// running reports whether the process still runs.
func (s *Server) running() bool {
	if s.ended == nil {
		return false
	}
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// kill ends the process, paused or not, and waits for its end.
func (s *Server) kill() {
	if s.ended == nil {
		return
	}
	_ = s.cmd.Process.Kill() // an error: it has ended
	<-s.ended
	s.ended = nil
}

func (s *Server) pause(t testing.TB) {
	t.Helper()
	s.mustRun(t)
	check.Stop(t, s.PID())
}

func (s *Server) resume(t testing.TB) {
	t.Helper()
	s.mustRun(t)
	check.NoError(t, s.cmd.Process.Signal(syscall.SIGCONT))
}

func (s *Server) mustRun(t testing.TB) {
	t.Helper()
	if !s.running() {
		t.Fatalf("%s does not run", s.Name)
	}
}

// forget removes all data of the server.
func (s *Server) forget(t testing.TB) {
	t.Helper()
	if err := os.RemoveAll(s.dataDir()); err != nil {
		t.Fatalf("remove the state of %s: %v", s.Name, err)
	}
}

// portTaken reports whether the last start failed because another process had one of the server's ports.
func (s *Server) portTaken() bool {
	return strings.Contains(s.Log()[s.logged:], "address already in use")
}

// logTail returns the end of the log, enough to explain a failed test.
func (s *Server) logTail() string {
	const most = 4 << 10
	log := s.Log()
	if len(log) > most {
		log = "…" + log[len(log)-most:]
	}
	return log
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// Address is one of its ports as other hosts reach it.
func (s *Server) Address(port int) string { return fmt.Sprintf("%s:%d", s.bind(), port) }
