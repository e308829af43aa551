package testns

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// envEnds tells TestLeaves how to end.
const envEnds = "PANNIER_TEST_ENDS"

func TestMain(m *testing.M) { Main(m, 0) }

// TestLeaves starts a process in a separate session, prints its id and ends without waiting for it.
func TestLeaves(t *testing.T) {
	ends := os.Getenv(envEnds)
	if ends == "" {
		t.Skip("TestLeftovers runs this one")
	}
	// The shell ends at once; the process that it has started does not.
	out, err := exec.Command("setsid", "sh", "-c", "sleep 600 >/dev/null 2>&1 </dev/null & echo $!").Output()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("left: %s\n", strings.TrimSpace(string(out)))
	switch ends {
	case "well":
	case "badly":
		t.Error("as it should")
	case "in a panic":
		go panic("as it should")
		select {}
	default: // waits for a signal
		time.Sleep(10 * time.Minute)
	}
}

// TestLeftovers checks that processes started by tests end with them.
func TestLeftovers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: the tests run in their own namespace")
	}
	for ends, c := range map[string]struct {
		signal syscall.Signal // sent when the test has left its process
		code   int
	}{
		"well": {0, 0}, "badly": {0, 1}, "in a panic": {0, 2},
		"by SIGINT": {unix.SIGINT, 1}, "by SIGTERM": {unix.SIGTERM, 1}, "by SIGHUP": {unix.SIGHUP, 1},
		"with who ran them": {unix.SIGKILL, -1},
	} {
		t.Run(ends, func(t *testing.T) {
			program, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(program, "-test.run=^TestLeaves$")
			if c.signal == unix.SIGKILL {
				cmd = exec.Command("sh", append([]string{"-c", `"$0" "$@"; true`}, cmd.Args...)...)
			}
			cmd.Env = append(os.Environ(), envParent+"=", envEnds+"="+ends)
			left, ended := run(t, cmd)
			if c.signal != 0 {
				if err := cmd.Process.Signal(c.signal); err != nil {
					t.Fatal(err)
				}
			}
			<-ended
			if code := cmd.ProcessState.ExitCode(); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			if err := unix.Kill(left, 0); !errors.Is(err, unix.ESRCH) {
				t.Errorf("process %d is still there: %v", left, err)
				_ = unix.Kill(left, unix.SIGKILL)
			}
		})
	}
}

// run starts the tests. It returns the process that they leave, and a channel that is closed when they have
// ended.
func run(t *testing.T, cmd *exec.Cmd) (left int, ended <-chan struct{}) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said, over := make(chan int, 1), make(chan struct{})
	go func() {
		defer close(over)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if pid, err := strconv.Atoi(strings.TrimPrefix(lines.Text(), "left: ")); err == nil {
				said <- pid
			}
		}
		_ = cmd.Wait() // the caller checks its exit code
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-over
	})
	select {
	case pid := <-said:
		return pid, over
	case <-over:
		t.Fatal("it ended without leaving a process")
	case <-time.After(time.Minute):
		t.Fatal("it did not leave a process")
	}
	panic("not reached")
}
