package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-version"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/host/internal/system/signing"
	"github.com/pannier/pannier/host/internal/system/program"
	"github.com/pannier/pannier/internal/printable"
)

// Swap is one change, or attempted change, of the process that callers use.
type Swap = managed.Swap

// Side is one end of a swap.
type Side = managed.Side

// of returns the generation of a process, or nil.
func of(p *managed.Process) *generation {
	if p == nil {
		return nil
	}
	gen, _ := p.Conn.(*generation)
	return gen
}

// Choose returns the binary that should run: the copy that an operator pinned, else the highest version in the
// plugin directory that the configuration allows and that was not refused, else the copy that served last, or the
// one before it. A file that cannot be run now, which the status then shows, does not replace the copy that served. A
// plugin that is neither in the plugin directory nor configured, and never served, is removed.
func (i *instance) Choose(ctx context.Context, p *managed.Process) (managed.Source, error) {
	src, err := i.choose()
	if m := (*missing)(nil); p == nil && errors.As(err, &m) && !m.kept && !i.sup.configured(i.name) &&
		!i.sup.unsettled.Load() && ctx.Err() == nil {
		i.sup.running.Go(func() { _ = i.sup.forget(i) }) // what it reports is in the log
	}
	if err == nil {
		i.use(src.SHA256)
	}
	return src, err
}

func (i *instance) choose() (managed.Source, error) {
	src, problems, err := i.candidate()
	if now := i.versions(); !slices.Equal(now, i.snapshot().Versions) {
		i.set("", "", func(s *Status) { s.Versions = now })
	}
	if slices.ContainsFunc(problems, isWriting) { // the directory does not change when the writer closes the file
		i.procs.RecheckIn(settleTime)
	}
	if i.sup.unsettled.Load() || err == nil && slices.ContainsFunc(problems, managed.IsGone) {
		return src, err // a file is just being replaced or removed: the next look at the directory says which
	}
	text := ""
	problems = slices.DeleteFunc(problems, isWriting)
	if err == nil && len(problems) > 0 { // otherwise the error says it
		text = strings.ReplaceAll(errors.Join(problems...).Error(), "\n", "; ")
		if src.Path == "" {
			text += "; the copy that served goes on"
		}
	}
	if i.snapshot().FileProblem != text {
		what := EventFile
		if text == "" {
			what = ""
		}
		i.set(what, text, func(s *Status) { s.FileProblem = text })
	}
	return src, err
}

// isWriting says that the file is still being written.
func isWriting(err error) bool { return errors.Is(err, program.ErrWriting) }

// candidate returns the binary that should run and what is wrong with the plugin's files.
func (i *instance) candidate() (src managed.Source, problems []error, err error) {
	files, problems := i.allowed()
	all := make([]managed.File, 0, len(files))
	for _, f := range files {
		all = append(all, managed.File{Path: f.path, Check: func(sha string) error {
			if err := i.signed(f, sha); err != nil {
				return err
			}
			if is := i.rec.VersionOf(sha); is != "" {
				if err := checkPromised(f.version, is); err != nil {
					return fmt.Errorf("%s: %w", f.path, err)
				}
			}
			return nil
		}})
	}
	src, more, err := i.procs.Candidate(all)
	if len(files) == 0 {
		m := &missing{name: i.name, dir: i.sup.cfg.PluginDir, kept: i.procs.Kept() != nil}
		if more = append(more, m); src == (managed.Source{}) {
			err = m
		}
	}
	return src, append(problems, more...), err
}

// missing says that the plugin directory has no file of a plugin.
type missing struct {
	name, dir string
	kept      bool // a copy is kept
}

func (m *missing) Error() string {
	text := fmt.Sprintf("open the plugin: %s has no file of it: %v", m.dir, syscall.ENOENT)
	if m.kept {
		text += "; put it back, or run: pannier plugin remove " + m.name
	}
	return text
}

// allowed returns the plugin's files that satisfy the version constraint, the highest version first. A file
// without a version in its name is always included, because only its process can report its version. Of two files of
// one version the one that served is taken, else the first by name; problems says so.
func (i *instance) allowed() (files []file, problems []error) {
	for _, f := range i.sup.files(i.name) {
		if f.version != nil && i.spec.checkVersion(f.version.String()) != nil {
			continue
		}
		last := len(files) - 1
		if last < 0 || files[last].compare(f) != 0 {
			files = append(files, f)
			continue
		}
		if !f.executable {
			continue
		}
		if filepath.Base(f.path) == i.rec.File {
			files[last], f = f, files[last]
		}
		problems = append(problems, fmt.Errorf("%s is refused: %s is the same plugin in the same version: remove %s", f.path,
			files[last].path, f.path))
	}
	return files, problems
}

// proven is what signed found of a file.
type proven struct {
	sha   string
	proof signing.Proof
	err   error
}

// signed returns why a file is not signed as the host requires. It reads the file only if that, or its signature, has
// changed. It is a first look, so that what is wrong shows in the status: the copy is what counts (see admit).
func (i *instance) signed(f file, sha string) error {
	if !i.sup.cfg.Signing.Required {
		return nil
	}
	proof, err := signing.Beside(f.path)
	if err != nil {
		return fmt.Errorf("%s: %w", f.path, err)
	}
	was, ok := i.proofs[f.path]
	if ok && was.sha == sha && was.proof.Equal(proof) {
		return was.err
	}
	now := proven{sha: sha, proof: proof}
	if _, now.err = i.checkSigned(f.path, f.path, proof); now.err != nil {
		now.err = managed.NewPermanent(fmt.Errorf("%s: %w", f.path, now.err))
	}
	i.proofs[f.path] = now
	return now.err
}

// checkSigned returns signing.ErrSignature unless a key that this host trusts has signed a copy of the file src, if it
// requires that. want is the version that the process has to report; nil: any.
func (i *instance) checkSigned(src, copied string, proof signing.Proof) (want *version.Version, err error) {
	_, v := signing.SplitVersion(filepath.Base(src))
	if !i.sup.cfg.Signing.Required {
		return v, nil
	}
	f, err := os.Open(copied)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	want, err = i.sup.cfg.Signing.Check(i.name, v, f, proof)
	return cmp.Or(want, v), err
}

// admit returns why a copy must not run, and keeps the signature of its file beside it.
func (i *instance) admit(src, temp, kept, sha string) error {
	if err := i.checkAllowed(sha); err != nil {
		return err
	}
	proof, err := signing.Beside(src)
	if err != nil && i.sup.cfg.Signing.Required {
		return err
	}
	if i.promised, err = i.checkSigned(src, temp, proof); err != nil {
		if err = fmt.Errorf("%s: %w", src, err); errors.Is(err, signing.ErrSignature) { // which may arrive after the file
			err = managed.NewPermanent(err)
		}
		return err
	}
	if src == kept || len(proof.Signature) == 0 {
		return nil
	}
	return proof.Write(kept) // before the copy: whoever finds that finds both
}

// checkAllowed refuses a copy that the configuration does not allow any more. A copy that is only outdated keeps
// serving until the newer one is up.
func (i *instance) checkAllowed(sha string) error {
	want, err := i.spec.checksum()
	if err == nil && want != "" && want != sha {
		err = fmt.Errorf("%w: it has sha256:%s, the configuration wants sha256:%s", managed.ErrChecksum, sha, want)
	}
	return err
}

// Same says whether a process runs a binary, with the instance's settings.
func (i *instance) Same(p *managed.Process, src managed.Source) bool {
	return src.SHA256 == p.Run.SHA256 && (p.Run.Settings == i.settingsDigest() || i.unfit[src.SHA256])
}

// MayOverlap is always true: two processes of a plugin may run side by side.
func (i *instance) MayOverlap(*managed.Process) bool { return true }

// Examine returns why a process must not take over.
func (i *instance) Examine(ctx context.Context, p, next *managed.Process) error {
	first := of(next).firstHealth
	switch {
	case p != nil && next.Run.Kind != p.Run.Kind:
		return managed.NewPermanent(fmt.Errorf("it is of kind %s, and what runs is of kind %s", next.Run.Kind, p.Run.Kind))
	case !first.healthy:
		return fmt.Errorf("it reports that it is unhealthy: %s", first.message)
	}
	return i.probe(ctx, of(next))
}

// probe asks the host whether a process could do the plugin's work.
func (i *instance) probe(ctx context.Context, gen *generation) error {
	if i.sup.cfg.Probe == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, i.sup.cfg.StartTimeout)
	defer cancel()
	if err := i.sup.cfg.Probe(ctx, i.name, gen.Run.Kind, gen.conn); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	return nil
}

// Served records that a copy serves, with the instance's settings.
func (i *instance) Served(p *managed.Process, src managed.Source) (undo func()) {
	if src.Path != "" {
		i.rec.File = filepath.Base(src.Path)
	}
	i.rec.KeepNewest(cmp.Or(i.spec.KeepVersions, defaultKeepVersions))
	was := i.rec.Settings
	known := maps.Clone(was)
	maps.DeleteFunc(known, func(sha string, _ settings) bool { return !i.rec.MayServe(sha) })
	if known == nil {
		known = map[string]settings{}
	}
	known[p.Run.SHA256] = i.spec.settings()
	i.rec.Settings = known
	return func() { i.rec.Settings = was }
}

// OnProbation says whether a generation took over so recently that a failure goes back to the copy before it: until
// the window has passed and it has answered some calls, but at most ten times the window.
func (i *instance) OnProbation(p *managed.Process, sha string, _ int) bool {
	if p == nil || p.Run.TookOver.IsZero() || i.rec.Pinned == sha && p.Run.PinnedBefore == "" {
		return false
	}
	window, since := cmp.Or(i.spec.RollbackWindow, i.sup.cfg.RollbackWindow), time.Since(p.Run.TookOver)
	calls, _ := of(p).Calls()
	return since <= window || calls < provenBy && since <= 10*window
}

// StartFailed refuses changed settings with which a process could not be started.
func (i *instance) StartFailed(src managed.Source, err error) bool {
	if !i.refuseSettings(src.SHA256, err) {
		return false
	}
	i.use(src.SHA256)
	return true
}

// Stops says whether the process ends with this instance.
func (i *instance) Stops(p *managed.Process) bool {
	return i.stopsPlugin() || p != nil && !p.Found && i.sup.undo.Load()
}

// Inherited reads the last events of a process that an earlier host has left, and ends it.
func (i *instance) Inherited(ctx context.Context, p *managed.Process, run *managed.Run) {
	i.endWithEvents(ctx, run)
	if run.Canary != 0 {
		i.endedWithHost(of(p), run)
	}
}

// Report shows what has happened in the status.
func (i *instance) Report(e managed.Event) {
	gen := of(e.Process)
	switch e.What {
	case managed.Up:
		how := EventStarted
		if gen.Found {
			how = EventReattached
		}
		i.announce(gen, how, gen.describe()+" is up")
	case managed.Waking:
		i.set("", "", func(s *Status) { s.State, s.NextTry = Starting, time.Time{} })
	case managed.Swapped:
		i.swapped(gen, e.Swap)
	case managed.NotSwapped:
		i.holds(gen.identity)
		what := EventSwapFailed
		if e.Retried {
			what = "" // it is reported
		}
		copyRecord := i.copyRecord()
		i.set(what, fmt.Sprintf("generation %d goes on: %v", gen.Run.Number, e.Err), func(s *Status) {
			s.LastError = e.Err.Error()
			copyRecord(s)
		})
	case managed.RolledBack:
		i.set(EventRolledBack, fmt.Sprintf("%s ended soon after it had taken over, the version before it is started: %v",
			gen.describe(), e.Err), func(s *Status) {
			s.State, s.LastError, s.PID = Starting, e.Err.Error(), 0
			s.Restarts++
		})
	case managed.Ended:
		i.waits(EventEnded, e)
	case managed.Failed:
		i.waits(EventFailed, e)
	case managed.Retired:
		i.set("", "", func(s *Status) { s.Draining++ })
	case managed.Drained:
		i.set("", "", func(s *Status) { s.Draining-- })
	case managed.Detached:
		i.set(EventStopped, "left running for the next host", func(s *Status) { s.State = Stopped })
	case managed.Stopped:
		i.set(EventStopped, errorText(e.Err), func(s *Status) {
			if s.State = Stopped; gen != nil {
				s.PID, s.LastError = 0, errorText(e.Err)
			}
		})
	}
}

// swapped reports that gen serves instead of another one.
func (i *instance) swapped(gen *generation, swap *Swap) {
	what, why := EventSwapped, ""
	switch {
	case swap.Rollback:
		what, why = EventRolledBack, ": "+swap.Why
	case swap.Restart:
		what = EventRestarted
	case swap.Canary != 0:
		what = EventPromoted
	}
	from := describe(swap.From)
	i.announce(gen, what, fmt.Sprintf("%s to %s in %v, the old process finishes %s%s",
		from, gen.describe(), swap.Took.Round(time.Millisecond), printable.Count(swap.Carried, "call"), why))
}

// waits reports why no process runs, and when the next one is started.
func (i *instance) waits(what EventType, e managed.Event) {
	state := BackingOff
	if errors.As(e.Err, &managed.Permanent{}) {
		state = Failed
	}
	rival := isDuplicate(e.Err)
	if rival != "" {
		what = EventFile
		if i.snapshot().LastError == e.Err.Error() {
			what = "" // it was reported
		}
	}
	i.set(what, e.Err.Error(), func(s *Status) {
		s.State, s.LastError, s.NextTry, s.PID, s.Message = state, e.Err.Error(), time.Now().Add(e.Wait), 0, ""
		s.DuplicateOf = rival
		if what == EventEnded {
			s.Restarts++
		}
	})
	if rival != "" && i.sup.instance(rival) == nil { // it was removed meanwhile
		i.procs.Retry()
	}
}
