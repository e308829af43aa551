package volumesteps

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pannier/pannier/internal/procfs"
	"github.com/pannier/pannier/test/lib/check"
)

// TestProcessOfAnUnansweredCall: the process of a driver has ended when nothing is left of its session: what it has
// started, such as mount(8), may mount after it has ended. A later process with its PID is not the driver.
func TestProcessOfAnUnansweredCall(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sleep 1000 >/dev/null & echo $!; read line")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin := check.Must(cmd.StdinPipe())(t)
	out := check.Must(cmd.StdoutPipe())(t)
	check.NoError(t, cmd.Start())
	line := make([]byte, 32)
	n := check.Must(out.Read(line))(t)
	child := check.Must(os.FindProcess(check.Must(strconv.Atoi(strings.TrimSpace(string(line[:n]))))(t)))(t)
	t.Cleanup(func() { _ = child.Kill() })
	st := check.Must(procfs.ReadStat(procfs.Dir(cmd.Process.Pid)))(t)

	call := &unanswered{PID: st.PID, Started: st.StartTime}
	if call.gone() {
		t.Error("it lives")
	}
	if (&unanswered{}).gone() {
		t.Error("a process that the host does not run is not known to have ended")
	}
	check.NoError(t, stdin.Close())
	_ = cmd.Wait()
	if call.gone() {
		t.Error("what it has started lives")
	}
	check.NoError(t, child.Kill())
	check.Eventually(t, "nothing is left of it", call.gone)

	own := check.Must(procfs.ReadStat(procfs.Dir(os.Getpid())))(t)
	if later := (&unanswered{PID: own.PID, Started: own.StartTime - 1}); !later.gone() {
		t.Error("a later process with its PID is taken for it")
	}
}
