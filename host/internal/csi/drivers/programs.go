package drivers

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pannier/pannier/host/internal/system/filewatch"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/system/program"
	"github.com/pannier/pannier/internal/atomicfile"
	"github.com/pannier/pannier/internal/trusted"
)

// A driver runs from a verified copy of its program, <data_dir>/drivers/<id>/<sha256>/<name>, so its file can be
// overwritten. When the file has changed, the process is replaced, and calls wait meanwhile, unless two processes of it
// may run side by side (overlap.go). A new program that does not get healthy, or ends again and again, is refused, and
// the copy that worked before takes over again.

// Swap is one change of a driver's program, or a refused one.
type Swap struct {
	At time.Time `json:"at"`
	// From and To are the checksums of the copies.
	From string `json:"from"`
	To   string `json:"to"`
	// Overlap says that the new process was brought up next to the old one, which served meanwhile; else calls waited.
	Overlap bool `json:"overlap,omitempty"`
	// Refused says that the old process serves on, and Rollback that it went back to the copy before. Why has the reason.
	Refused  bool   `json:"refused,omitempty"`
	Rollback bool   `json:"rollback,omitempty"`
	Why      string `json:"why,omitempty"`
	// Took is the time from At until the process of To was healthy, or was refused; 0: it is not known.
	Took time.Duration `json:"took,omitempty"`
}

// maxSwaps is how many swaps of a driver are recorded.
const maxSwaps = 20

// runnable is what a process is started from.
type runnable struct {
	path string
	sha  string // of the copy; empty: it is the file itself
}

// programs is what an instance knows of the file of its program.
type programs struct {
	ready    *runnable     // verified for the next start; nil: none
	last     string        // the copy that was started or found last
	seen     program.Stamp // the state of the file that was judged
	settling program.Stamp // a new state, which must stay for a moment
}

func stampOf(path string) (program.Stamp, error) {
	info, err := os.Stat(path)
	if err != nil {
		return program.Stamp{}, err
	}
	return program.StampOf(info), nil
}

// copiesDir holds the copies of a driver's program. An id holds no '@'.
func copiesDir(dataDir, key string) string {
	return filepath.Join(dataDir, "drivers", strings.ReplaceAll(key, "/", "@"))
}

func (i *instance) copyPath(sha string) string {
	return filepath.Join(copiesDir(i.r.cfg.DataDir, i.spec.key()), sha, filepath.Base(i.spec.Command[0]))
}

// hasCopy says whether a copy is kept.
func (i *instance) hasCopy(sha string) bool {
	if sha == "" {
		return false
	}
	_, err := os.Stat(i.copyPath(sha))
	return err == nil
}

// runsInPlace says whether a program has to run from its file: it finds other files beside that, as scripts and
// programs with $ORIGIN in their library path do.
func runsInPlace(file string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	magic := make([]byte, 2)
	if _, err := f.ReadAt(magic, 0); err == nil && string(magic) == "#!" {
		return true
	}
	parsed, err := elf.NewFile(f)
	if err != nil {
		return false // it is not complete, or no program
	}
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		paths, err := parsed.DynString(tag)
		if err == nil && slices.ContainsFunc(paths, func(p string) bool { return strings.Contains(p, "ORIGIN") }) {
			return true
		}
	}
	return false
}

// program returns what the next process is started from: a copy of the file or, if that cannot be used or was refused,
// the copy that worked before.
func (i *instance) program() (runnable, error) {
	run, err := i.choose()
	i.programs.ready, i.programs.last = nil, run.sha
	i.update(func(*Driver) { i.wasHealthy = false })
	return run, err
}

func (i *instance) choose() (runnable, error) {
	if ready := i.programs.ready; ready != nil {
		return *ready, nil
	}
	file := i.spec.Command[0]
	if i.rec.Program != file {
		i.rec.Program, i.rec.Ran, i.rec.Good, i.rec.Refused = file, "", "", nil
	}
	seen, _ := stampOf(file)
	run, err := runnable{}, trusted.File(file)
	if err == nil && runsInPlace(file) {
		i.programs.seen = seen
		return runnable{path: file}, i.spec.checkProgram()
	}
	if err == nil {
		run, err = i.take()
	}
	if err == nil {
		i.programs.seen = seen
		why, refused := i.rec.Refused[run.sha]
		if !refused {
			i.programIs("")
			return run, nil
		}
		err = fmt.Errorf("sha256:%.12s was refused: %s", run.sha, why)
	} else {
		err = fmt.Errorf("the program: %w", err)
	}
	kept, ok := i.kept()
	if !ok {
		if run.sha != "" {
			return run, nil // better to try it again than to run nothing
		}
		return runnable{}, err
	}
	if i.programs.seen = seen; errors.Is(err, program.ErrWriting) {
		i.programs.seen = program.Stamp{} // look again, also if only its writer's end is missing
	}
	i.programIs(err.Error() + "; the copy that worked before runs")
	return kept, nil
}

// take makes a verified copy of the file.
func (i *instance) take() (made runnable, err error) {
	top := copiesDir(i.r.cfg.DataDir, i.spec.key())
	mode := os.FileMode(0o700)
	if i.spec.User != "" {
		mode = 0o711 // the driver must reach its copy
	}
	if err := os.MkdirAll(filepath.Dir(top), 0o711); err != nil {
		return runnable{}, err
	}
	if err := os.MkdirAll(top, mode); err != nil {
		return runnable{}, err
	}
	if err := os.Chmod(top, mode); err != nil { // it may have had another user
		return runnable{}, err
	}
	temp, sha, err := program.Copy(i.spec.Command[0], top)
	if err != nil {
		return runnable{}, err
	}
	defer os.Remove(temp) // already gone if the rename was reached
	if err := i.spec.checkSum(sha); err != nil {
		return runnable{}, err
	}
	run := runnable{path: i.copyPath(sha), sha: sha}
	if err := os.MkdirAll(filepath.Dir(run.path), 0o711); err != nil {
		return runnable{}, err
	}
	if err := atomicfile.Sync(temp); err != nil {
		return runnable{}, err
	}
	if err := os.Rename(temp, run.path); err != nil {
		return runnable{}, err
	}
	i.collect(sha)
	return run, errors.Join(atomicfile.SyncDir(filepath.Dir(run.path)), atomicfile.SyncDir(top))
}

// collect removes the copies that nothing needs, and what a killed host left unfinished.
func (i *instance) collect(sha string) {
	keep := []string{sha, i.rec.Ran, i.rec.Good}
	if i.rec.Launch != nil {
		keep = append(keep, i.rec.Launch.SHA256)
	}
	top := copiesDir(i.r.cfg.DataDir, i.spec.key())
	entries, err := os.ReadDir(top)
	for _, e := range entries {
		if !slices.Contains(keep, e.Name()) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(top, e.Name())))
		}
	}
	if err != nil {
		i.log.Warn("old copies of the driver's program could not be removed", "error", err)
	}
}

// kept returns the copy that ran last or, if it was refused, the one that worked before, after hashing it again.
func (i *instance) kept() (runnable, bool) {
	for _, sha := range []string{i.rec.Ran, i.rec.Good} {
		if _, refused := i.rec.Refused[sha]; refused || !i.hasCopy(sha) || i.spec.checkSum(sha) != nil {
			continue
		}
		if got, err := program.Sum(i.copyPath(sha)); err == nil && got == sha {
			return runnable{path: i.copyPath(sha), sha: sha}, true
		}
	}
	return runnable{}, false
}

// watchProgram watches the directories of the program's file and of what it links to; nil: that is not possible.
func (i *instance) watchProgram() *filewatch.Watch {
	path := i.spec.Command[0]
	dirs := []string{filepath.Dir(path)}
	if target, err := filepath.EvalSymlinks(path); err == nil && filepath.Dir(target) != dirs[0] {
		dirs = append(dirs, filepath.Dir(target))
	}
	watch, err := filewatch.Start(dirs...)
	if err != nil {
		i.log.Debug("the driver's program is looked at all the time", "error", err)
	}
	return watch
}

// programSettled reports whether nothing happens to the program until its file changes.
func (i *instance) programSettled() bool {
	now, err := stampOf(i.spec.Command[0])
	return err == nil && now == i.programs.seen && !i.timing && i.beside == nil
}

// changedProgram reports whether the process has to be replaced because its file has changed. The copy is then ready.
func (i *instance) changedProgram() bool {
	now, err := stampOf(i.spec.Command[0])
	if err != nil || now == i.programs.seen || i.rec.Launch.SHA256 == "" || i.waiting != nil || i.rec.Beside != nil {
		return false
	}
	if now != i.programs.settling {
		i.programs.settling = now
		return false
	}
	if i.programs.ready == nil {
		if sha, err := program.Sum(i.spec.Command[0]); err == nil && sha == i.rec.Launch.SHA256 {
			i.programs.seen = now
			i.programIs("")
			return false
		}
		run, err := i.choose()
		if err != nil && !errors.Is(err, program.ErrWriting) {
			i.programs.seen = now
			i.programIs(err.Error())
			return false
		}
		if i.programs.seen != now { // it is being written
			i.programs.seen = program.Stamp{}
			return false
		}
		if run.sha == "" || run.sha == i.rec.Launch.SHA256 {
			return false
		}
		i.programs.ready = &run
	}
	if i.inUse() && process.ServesMounts(i.proc.PID()) {
		i.programs.seen = program.Stamp{} // look again
		i.programIs(fmt.Sprintf("its program has changed, and waits: the process %d serves file systems that are in use; "+
			"pannier driver restart -force %s ends them", i.proc.PID(), i.spec.ID))
		return false
	}
	if i.worked() {
		i.rec.Good = i.rec.Launch.SHA256
		i.collect(i.programs.ready.sha)
	}
	return true
}

// replaces records that the process is ended, and followed by one of the program that is ready.
func (i *instance) replaces() {
	i.swapped(Swap{From: i.rec.Launch.SHA256, To: i.programs.ready.sha})
	i.programIs("")
	i.event("swapped", fmt.Sprintf("its program has changed from sha256:%.12s to sha256:%.12s: it is restarted, and calls wait",
		i.rec.Launch.SHA256, i.programs.ready.sha), nil)
}

// rollBack refuses the program of a process that has ended, if it is new and never got healthy, or has ended several
// times in a row, and the one before it is kept. It returns whether it did; that one is started next.
func (i *instance) rollBack(why string, times int) bool {
	sha := i.programs.last
	if sha == "" || sha == i.rec.Good || !i.hasCopy(i.rec.Good) || i.worked() && times < crashLoop {
		return false
	}
	if said := process.LastWords(i.logPath(), i.printed); said != "" {
		why += fmt.Sprintf("; it printed %q", said)
	}
	i.rec.Refused = map[string]string{sha: why}
	i.swapped(Swap{From: sha, To: i.rec.Good, Rollback: true, Why: why})
	i.update(func(d *Driver) {
		d.PID, d.Healthy, d.checked = 0, false, true
		i.state = why
	})
	i.event("rolled-back", fmt.Sprintf("sha256:%.12s is refused, and sha256:%.12s runs again: %s", sha, i.rec.Good, why), nil)
	return true
}

// worked says whether the process has been healthy since it was started or found.
func (i *instance) worked() bool {
	i.r.mu.Lock()
	defer i.r.mu.Unlock()
	return i.wasHealthy
}

// proved records that the program of the process works.
func (i *instance) proved() {
	if sha := i.rec.Launch.SHA256; sha != "" && i.worked() && i.rec.Good != sha {
		i.rec.Good = sha
		if err := i.save(); err != nil {
			i.log.Error("the program that works could not be recorded", "error", err)
		}
	}
}

// swapped records a swap that happens now.
func (i *instance) swapped(s Swap) {
	if s.At.IsZero() {
		s.At = time.Now().UTC()
	}
	i.timing = s.Took == 0
	swaps := append(slices.Clone(i.rec.Swaps), s)
	i.keepSwaps(slices.Delete(swaps, 0, max(0, len(swaps)-maxSwaps)))
}

// timeSwap records how long the last swap took, once its process is healthy.
func (i *instance) timeSwap() {
	if !i.timing || !i.worked() {
		return
	}
	i.timing = false
	swaps := slices.Clone(i.rec.Swaps)
	last := &swaps[len(swaps)-1]
	if took := i.snapshot().ChangedAt.Sub(last.At); took > 0 { // else it went on being healthy
		last.Took = took
		i.keepSwaps(swaps)
	}
}

func (i *instance) keepSwaps(swaps []Swap) {
	i.rec.Swaps = swaps
	if err := i.save(); err != nil {
		i.log.Error("a swap of the driver's program could not be recorded", "error", err)
	}
	i.update(func(d *Driver) { d.Swaps = swaps })
}

// programIs shows what is wrong with the program's file, and reports it once; empty: nothing is.
func (i *instance) programIs(problem string) {
	before, _ := i.update(func(d *Driver) { d.ProgramProblem = problem })
	if problem != "" && problem != before.ProgramProblem {
		i.event("program-waits", problem, nil)
	}
}
