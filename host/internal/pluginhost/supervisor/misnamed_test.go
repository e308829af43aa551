package supervisor_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
)

// A file whose name has another version than its process reports does not take over, even if it is what serves, and
// the plugin comes up again beside it. An error is gone from the status once its file is gone, or another version has
// taken over.
func TestFileOfAnotherVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	mustCall(t, s, "fixture", "")
	served := status(t, s, "fixture").SHA256
	says := "the plugin's version is 1.8.0, and its signature or file is for 2.0.0"
	w.put("fixture_v2.0.0", "good", "1.8.0")
	st := await(t, s, "fixture", func(st supervisor.Status) bool { return len(st.Refused) > 0 })
	if st.SHA256 != served || !strings.Contains(st.LastError, says) {
		t.Errorf("status %+v; want an error with %q", st, says)
	}

	w.must(os.Remove(w.path("fixture_v2.0.0")))
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.LastError == "" })
	w.put("fixture_v2.0.0", "good", "1.8.0")
	copyFile(t, w.path("fixture"), w.path("fixture_v3.0.0.tmp"))
	w.must(os.Rename(w.path("fixture_v3.0.0.tmp"), w.path("fixture_v3.0.0")))
	problem := w.path("fixture_v3.0.0") + ": the plugin's version is 1.2.3"
	misnamed := func(st supervisor.Status) bool {
		return st.SHA256 == served && st.State == supervisor.Running && strings.Contains(st.FileProblem, problem)
	}
	await(t, s, "fixture", misnamed)
	w.must(s.Close())
	s = w.open()
	await(t, s, "fixture", misnamed)

	w.put("fixture_v4.0.0", "good", "4.0.0")
	st = await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "4.0.0" && st.FileProblem == "" })
	if st.LastError != "" {
		t.Errorf("after a good swap: %+v", st)
	}
}

// Verify returns the name that the process reports, and says which machine a program is for.
func TestVerifyOfAnotherFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	path := filepath.Join(filepath.Dir(w.candidate("fixture", "good", "2.0.0")), "renamed")
	w.must(os.WriteFile(path, append(w.binary("good", "2.0.0"), named("other")...), 0o755))
	if v, err := s.Verify(within(t), path); err != nil || v.Name != "other" || v.Known {
		t.Errorf("verified %+v, %v", v, err)
	}
	data := w.binary("good", "2.0.0")
	binary.LittleEndian.PutUint16(data[18:], 22) // e_machine of EM_S390, elf(5)
	w.must(os.WriteFile(path, data, 0o755))
	says := "it is for s390x, and this machine is " + runtime.GOARCH
	if _, err := s.Verify(within(t), path); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("verified a program for another machine: %v; want %q", err, says)
	}
}
