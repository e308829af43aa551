package volumesteps

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/pannier/pannier/internal/procfs"
	"github.com/pannier/pannier/test/lib/check"
)

// A call that was never answered counts as long as anything lives that its driver has started, such as mount(8).
func TestDriverIsGoneWithItsHelpers(t *testing.T) {
	in, out, err := os.Pipe()
	check.NoError(t, err)
	defer out.Close()
	driver := exec.Command("sh", "-c", "cat <&3 & read line")
	driver.ExtraFiles, driver.SysProcAttr = []*os.File{in}, &syscall.SysProcAttr{Setsid: true}
	stop, err := driver.StdinPipe()
	check.NoError(t, err)
	check.NoError(t, driver.Start())
	check.NoError(t, in.Close())
	stat := check.Must(procfs.ReadStat(procfs.Dir(driver.Process.Pid)))(t)
	call := unanswered{PID: driver.Process.Pid, Started: stat.StartTime}
	if call.gone() {
		t.Error("it is gone while the driver lives")
	}
	check.NoError(t, stop.Close())
	_ = driver.Wait() // with 1: the line has not come
	if call.gone() {
		t.Error("it is gone while what the driver has started lives")
	}
	check.NoError(t, out.Close())
	check.Eventually(t, "it to be gone", call.gone)
}
