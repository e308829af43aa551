package drivers

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/system/program"
	"github.com/pannier/pannier/internal/trusted"
)

// A driver runs from a verified copy of its program, <data_dir>/drivers/<id>/<sha256>/<name>, so its file can be
// overwritten. When the file has changed, the process is replaced, and calls wait meanwhile, unless two processes of it
// may run side by side (overlap.go). A new program that does not get healthy, or ends again and again, is refused, and
// the copy that worked before takes over again.

// Swap is one change of a driver's program, or a refused one.
type Swap = managed.Swap

// copiesDir holds the copies of a driver's program. An id holds no '@'.
func copiesDir(dataDir, key string) string {
	return filepath.Join(dataDir, "drivers", strings.ReplaceAll(key, "/", "@"))
}

// runsInPlace reports whether a program has to run from its file: it finds other files beside that, as scripts and
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

// programs is what an instance knows of the file of its program, and its copies.
type programs struct {
	*instance
	timing bool // the last swap in the record is not timed yet
}

// choose returns what the next process is started from: a copy of the file or, if that cannot be used or was
// refused, the copy that worked before. p serves, and goes on if nothing else may run. None is started while
// another configuration waits (errChanged).
func (i *programs) choose(_ context.Context, p *managed.Process) (managed.Source, error) {
	file := i.spec.Command[0]
	switch {
	case p == nil && i.waiting != nil:
		i.supersede() // there is no process any more
		return managed.Source{}, errChanged
	case p != nil && (i.waiting != nil || p.Run.SHA256 == ""):
		return managed.Source{SHA256: p.Run.SHA256}, nil
	case i.rec.Program != file:
		i.rec.Program, i.rec.Served, i.rec.LastGood, i.rec.Good, i.rec.Refused = file, "", "", "", nil
	}
	if trusted.File(file) == nil && runsInPlace(file) && p == nil {
		return managed.Source{Path: file, InPlace: true}, i.spec.checkProgram()
	}
	src, problems, err := i.procs.Candidate([]managed.File{{Path: file, Check: func(sha string) error {
		return errors.Join(trusted.File(file), i.spec.checkSum(sha))
	}}})
	if err != nil {
		return src, fmt.Errorf("the program: %w", err)
	}
	if slices.ContainsFunc(problems, func(err error) bool { return errors.Is(err, program.ErrWriting) }) {
		i.procs.RecheckIn(i.r.timing.programEvery)
	} else {
		i.is(i.problem(file, src, problems))
	}
	if p != nil && src.SHA256 != p.Run.SHA256 && i.servesMounts(p) {
		i.procs.RecheckIn(i.r.timing.programEvery)
		i.is(fmt.Sprintf("its program has changed, and waits: the process %d serves file systems that are in use; "+
			"pannier driver restart -force %s ends them", p.PID(), i.spec.ID))
		return managed.Source{SHA256: p.Run.SHA256}, nil
	}
	return src, nil
}

// problem explains why src is not made of the program's file; empty: it is.
func (i *programs) problem(file string, src managed.Source, problems []error) string {
	sum, _ := i.procs.Known(file)
	why, refused := i.rec.Refused[sum]
	switch now := i.snapshot().ProgramProblem; {
	case len(problems) > 0:
		return fmt.Sprintf("the program: %v; the copy that worked before runs", errors.Join(problems...))
	case src.Path != "" || !refused:
		return ""
	case strings.Contains(now, fmt.Sprintf("sha256:%.12s is refused", sum)):
		return now
	default:
		return fmt.Sprintf("sha256:%.12s was refused: %s; the copy that worked before runs", sum, why)
	}
}

// servesMounts reports whether a process serves file systems in use itself.
func (i *instance) servesMounts(p *managed.Process) bool {
	return i.inUse() && process.ServesMounts(p.PID())
}

// collect removes the copies that nothing needs, and what a killed host left unfinished.
func (i *programs) collect() {
	keep := map[string]bool{i.rec.Good: true}
	i.rec.Needs(keep)
	if err := i.procs.Store.Collect(keep); err != nil {
		i.log.Warn("old copies of the driver's program could not be removed", "error", err)
	}
}

// worked reports whether the process that serves, or served last, has been healthy since it was started or found.
func (i *instance) worked() bool {
	i.r.mu.Lock()
	defer i.r.mu.Unlock()
	return i.wasHealthy
}

// proved records that a program works.
func (i *programs) proved(sha string) {
	if sha == "" || !i.worked() || i.rec.Good == sha {
		return
	}
	i.rec.Good, i.rec.LastGood = sha, sha
	if err := i.save(); err != nil {
		i.log.Error("the program that works could not be recorded", "error", err)
	}
}

// timeSwap records how long the last swap took, once its process is healthy.
func (i *programs) timeSwap() {
	if !i.timing || !i.worked() {
		return
	}
	i.timing = false
	swaps := slices.Clone(i.rec.Swaps)
	last := &swaps[len(swaps)-1]
	if took := i.snapshot().ChangedAt.Sub(last.At); took > 0 { // else it went on being healthy
		last.Took = took
		i.rec.Swaps = swaps
		if err := i.save(); err != nil {
			i.log.Error("a swap of the driver's program could not be recorded", "error", err)
		}
		i.update(func(d *Driver) { d.Swaps = swaps })
	}
}

// is shows what is wrong with the program's file, and reports it once; empty: nothing is.
func (i *programs) is(problem string) {
	before, _ := i.update(func(d *Driver) { d.ProgramProblem = problem })
	if problem != "" && problem != before.ProgramProblem {
		i.event("program-waits", problem, nil)
	}
}
