package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/host/internal/system/program"
	"github.com/pannier/pannier/host/internal/system/signing"
	"github.com/pannier/pannier/internal/printable"
)

// Swap is one change, or attempted change, of the process that callers use.
type Swap struct {
	At time.Time `json:"at"`
	// From and To are the two generations; To has no number if it never ran.
	From Side `json:"from"`
	To   Side `json:"to"`
	// Took is the time from the choice of the binary until callers used the new process.
	Took time.Duration `json:"took"`
	// Carried is how many calls and streams the old process still had to finish.
	Carried int `json:"carried,omitempty"`
	// Rollback says that the swap went back to the copy that had served before, since the newer one is refused.
	Rollback bool `json:"rollback,omitempty"`
	// Restart says that it is a new process of the same binary, which an operator asked for.
	Restart bool `json:"restart,omitempty"`
	// Canary is the percentage of the calls that To had as a canary; 0: it was none.
	Canary int `json:"canary,omitempty"`
	// Why says why it went back.
	Why string `json:"why,omitempty"`
	// Error says why callers kept the old process; empty if they moved.
	Error string `json:"error,omitempty"`
}

// Side is one end of a swap.
type Side struct {
	Generation uint64 `json:"generation,omitempty"`
	Version    string `json:"version,omitempty"`
	SHA256     string `json:"sha256"`
	// Calls are those that the process had answered under this host until the swap, and FailedCalls how many of them
	// failed (see Status). Beside a canary only those since the canary began are counted.
	Calls       int `json:"calls,omitempty"`
	FailedCalls int `json:"failed_calls,omitempty"`
}

func (g *generation) side() Side {
	s := Side{Generation: g.number, Version: g.version, SHA256: g.sha}
	s.Calls, s.FailedCalls = g.outcomes.answered()
	return s
}

// errSame says that the right binary runs already.
var errSame = errors.New("it runs already")

// replace brings the binary that should run up beside gen, moves callers to it, and leaves gen to finish their
// calls within grace. If it fails, callers notice nothing: gen still serves, and nothing of the new process is left.
func (i *instance) replace(ctx context.Context, gen *generation, grace *time.Duration) (*generation, error) {
	src, err := i.choose()
	if err != nil {
		return nil, err
	}
	i.use(src.sha)
	if src.sha == gen.sha && (i.hasSettings(gen) || i.unfit[src.sha]) {
		return nil, errSame
	}
	return i.swapTo(ctx, gen, src, grace)
}

// swapTo is replace by a binary that was chosen.
func (i *instance) swapTo(ctx context.Context, gen *generation, src source, grace *time.Duration) (*generation, error) {
	_, refused := i.rec.Refused[gen.sha]
	swap := Swap{
		At: time.Now().UTC(), From: gen.side(), To: Side{SHA256: src.sha}, Rollback: refused && src.sha == i.rec.LastGood,
		Restart: src.sha == gen.sha && i.hasSettings(gen),
	}
	next, err := i.bringBeside(ctx, gen, src)
	if next != nil {
		swap.To = next.side()
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		i.notSwapped(gen, swap, src, err)
		return nil, err
	}
	next.outcomes.before = gen.outcomes.tallies()
	if swap.Rollback || swap.Restart { // not to be compared with what it replaces
		swap.Why, next.outcomes.before = i.rec.Refused[gen.sha], gen.outcomes.before
	}
	return i.moved(ctx, gen, next, swap, grace)
}

// moved moves callers from gen to next, which the record names, and leaves gen to finish their calls within grace.
func (i *instance) moved(ctx context.Context, gen, next *generation, swap Swap, grace *time.Duration,
) (*generation, error) {
	var ended error
	if swap.Canary == 0 {
		ended = i.endCanary(ctx, next, next.describe()+" has taken over", grace)
	}
	swap.Carried = i.takeOver(ctx, gen, next)
	if swap.Canary == 0 {
		swap.From = gen.side() // it has answered calls while next came up
	}
	swap.Took = time.Since(swap.At)
	failpoint.Here("swap", "moved")
	i.drainLater(ctx, gen, grace, !i.unhealthySince.IsZero())
	i.rec.swapped(swap)
	what, why := EventSwapped, ""
	switch {
	case swap.Rollback:
		what, why = EventRolledBack, ": "+swap.Why
	case swap.Restart:
		what = EventRestarted
	case swap.Canary != 0:
		what = EventPromoted
	}
	i.announce(next, what, fmt.Sprintf("%s to %s in %v, the old process finishes %s%s",
		gen.describe(), next.describe(), swap.Took.Round(time.Millisecond), printable.Count(swap.Carried, "call"), why))
	return next, errors.Join(ended, i.rec.save(i.sup.dir))
}

// tryBeside starts a process beside the serving one. If it is not healthy or does not pass the probe, it is ended.
func (i *instance) tryBeside(ctx context.Context, gen *generation, src source) (next *generation, err error) {
	if next, err = i.launch(ctx, src); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, i.end(ctx, next))
		}
	}()
	if err := i.rec.save(i.sup.dir); err != nil {
		return next, err
	}
	failpoint.Here("swap", "up")
	if next.kind != gen.kind {
		return next, permanent{fmt.Errorf("it is of kind %s, and what runs is of kind %s", next.kind, gen.kind)}
	}
	if !next.firstHealth.healthy {
		return next, fmt.Errorf("it reports that it is unhealthy: %s", next.firstHealth.message)
	}
	return next, i.probe(ctx, next)
}

// bringBeside is tryBeside, and records that the new process serves.
func (i *instance) bringBeside(ctx context.Context, gen *generation, src source) (*generation, error) {
	next, err := i.tryBeside(ctx, gen, src)
	if err != nil {
		return next, err
	}
	was := i.rec
	i.serves(next.record, src)
	next.record.TookOver = gen.record.TookOver // the same binary stays on probation
	if next.sha != gen.sha {
		next.record.TookOver = time.Now().UTC()
	}
	if err := i.rec.save(i.sup.dir); err != nil {
		i.rec = was
		return next, errors.Join(err, i.end(ctx, next))
	}
	failpoint.Here("swap", "recorded")
	return next, nil
}

// probe asks the host whether a process could do the plugin's work.
func (i *instance) probe(ctx context.Context, gen *generation) error {
	if i.sup.cfg.Probe == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, i.sup.cfg.StartTimeout)
	defer cancel()
	if err := i.sup.cfg.Probe(ctx, i.name, gen.kind, gen.conn); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	return nil
}

// end stops a process that never served.
func (i *instance) end(ctx context.Context, gen *generation) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), failedStop)
	defer cancel()
	return errors.Join(gen.stop(ctx), i.clear(ctx, gen.record, failedStop))
}

// notSwapped records a failed swap. Changed settings are not tried again until they are changed again, else the binary
// until its file changes; or an operator asks for it. A binary that could not be copied is tried again after a while.
func (i *instance) notSwapped(gen *generation, s Swap, src source, err error) {
	i.holds(gen.identity)
	s.From, s.Error, s.Took = gen.side(), err.Error(), time.Since(s.At)
	what := EventSwapFailed
	switch copyErr := (notCopied{}); {
	case errors.As(err, &copyErr):
		i.again.Reset(i.sup.cfg.Restart.Max)
	case i.refuseSettings(src.sha, err):
		what = "" // it is reported
		i.recheck()
	case s.To.SHA256 != s.From.SHA256:
		i.rec.refuse(src.sha, err.Error())
		i.recheck() // of changed settings with the present binary
	}
	i.rec.swapped(s)
	err = errors.Join(err, i.rec.save(i.sup.dir))
	copyRecord := i.copyRecord()
	i.set(what, fmt.Sprintf("generation %d goes on: %v", s.From.Generation, err), func(st *Status) {
		st.LastError = err.Error()
		copyRecord(st)
	})
}

// takeOver moves callers to the generation to, and returns how many still use from. The events of both are read
// while both exist.
func (i *instance) takeOver(ctx context.Context, from, to *generation) (carried int) {
	i.current.Store(to)
	if to.events == nil { // a canary has one
		to.events = i.follow(ctx, to.conn, to.record, to.run.proc.Done())
	}
	from.retire()
	return from.userCount()
}

// drainLater lets a generation finish its calls within grace, gives up those that are left, and stops it. Without
// grace, it is DrainTimeout, but StopTimeout for a process that is unwell or does not answer.
func (i *instance) drainLater(ctx context.Context, gen *generation, grace *time.Duration, unwell bool) {
	ctx = context.WithoutCancel(ctx) // it outlasts the swap, and the close of the host
	i.set("", "", func(s *Status) { s.Draining++ })
	limit := i.sup.cfg.DrainTimeout
	switch {
	case grace != nil:
		limit = *grace
	case unwell:
		limit = i.sup.cfg.StopTimeout
	}
	i.sup.draining.Go(func() {
		if grace == nil && !unwell && !gen.drain(answerAfter, i.sup.stopDraining) &&
			!gen.answers(ctx, i.sup.cfg.StopTimeout) {
			limit = 0
		}
		gen.drain(limit, i.sup.stopDraining)
		gen.abandon()
		ctx, cancel := context.WithTimeout(ctx, i.sup.cfg.StopTimeout)
		defer cancel()
		if err := gen.stop(ctx); err != nil {
			i.log.Warn("an old generation did not end by itself", "generation", gen.number, "error", err)
		}
		failpoint.Here("swap", "drained")
		i.mu.Lock()
		i.drained = append(i.drained, gen)
		i.mu.Unlock()
		i.set("", "", func(s *Status) { s.Draining-- })
		i.recheck()
	})
}

// clearDrained removes drained generations from the record.
func (i *instance) clearDrained(ctx context.Context) {
	i.mu.Lock()
	gone := i.drained
	i.drained = nil
	i.mu.Unlock()
	for _, gen := range gone {
		if err := i.clear(ctx, gen.record, failedStop); err != nil {
			i.log.Warn("an old generation could not be removed from the record", "generation", gen.number, "error", err)
		}
	}
}

// onProbation says whether a generation took over so recently that a failure goes back to the copy before it: until
// the window has passed and it has answered some calls, but at most ten times the window.
func (i *instance) onProbation(gen *generation) bool {
	pinned := i.rec.Pinned == gen.sha && gen.record.PinnedBefore == ""
	if gen.record.TookOver.IsZero() || pinned || i.rec.LastGood == gen.sha || !i.canGoBack() {
		return false
	}
	window, since := cmp.Or(i.spec.RollbackWindow, i.sup.cfg.RollbackWindow), time.Since(gen.record.TookOver)
	calls, _ := gen.outcomes.answered()
	return since <= window || calls < provenBy && since <= 10*window
}

// canGoBack says whether there is an earlier copy that was not refused.
func (i *instance) canGoBack() bool {
	_, refused := i.rec.Refused[i.rec.LastGood]
	return i.rec.LastGood != "" && !refused && i.sup.store.has(i.rec.LastGood, i.name)
}

// refuseOnProbation refuses the binary of a generation that failed while on probation, so that the copy before it
// is chosen next. It returns whether it did.
func (i *instance) refuseOnProbation(gen *generation, why error) bool {
	if !i.onProbation(gen) {
		return false
	}
	if i.rec.Pinned == gen.sha {
		i.rec.Pinned = gen.record.PinnedBefore
	}
	i.rec.refuse(gen.sha, fmt.Sprintf("%s after it had taken over: %v",
		time.Since(gen.record.TookOver).Round(time.Millisecond), why))
	return true
}

// source is an executable to start a process from.
type source struct {
	sha  string
	path string // in the plugin directory; empty: use the kept copy
}

// choose returns the binary that should run: the copy that an operator pinned, else the highest version in the
// plugin directory that the configuration allows and that was not refused, else the copy that served last, or the
// one before it. A file that cannot be run now, which the status then shows, does not replace the copy that served.
func (i *instance) choose() (source, error) {
	src, problems, err := i.candidate()
	if now := i.versions(); !slices.Equal(now, i.snapshot().Versions) {
		i.set("", "", func(s *Status) { s.Versions = now })
	}
	if slices.ContainsFunc(problems, isWriting) { // the directory does not change when the writer closes the file
		i.again.Reset(settleTime)
	}
	if i.sup.unsettled.Load() || err == nil && slices.ContainsFunc(problems, isGone) {
		return src, err // a file is just being replaced or removed: the next look at the directory says which
	}
	text := ""
	problems = slices.DeleteFunc(problems, isWriting)
	if err == nil && len(problems) > 0 { // otherwise the error says it
		text = strings.ReplaceAll(errors.Join(problems...).Error(), "\n", "; ")
		if src.path == "" {
			text += "; the copy that served goes on"
		}
	}
	i.fileIs(text)
	return src, err
}

// candidate returns the binary that should run and what is wrong with the plugin's files.
func (i *instance) candidate() (src source, problems []error, err error) {
	files, problems := i.allowed()
	kept := i.kept()
	var refused *source
	var errs []error
	for _, f := range files {
		sha, err := i.sum(f.path)
		if err == nil {
			err = i.signed(f, sha)
		}
		if is := i.rec.versionOf(sha); err == nil && is != "" {
			if err = checkPromised(f.version, is); err != nil {
				err = fmt.Errorf("%s: %w", f.path, err)
			}
		}
		if err != nil {
			errs = append(errs, err)
			if kept != nil {
				break // what serves is not replaced by an older version either
			}
			continue
		}
		src := source{sha: sha, path: f.path}
		if _, no := i.rec.Refused[sha]; !no && i.rec.Pinned == "" {
			return src, append(problems, errs...), nil
		}
		if refused == nil {
			refused = &src
		}
	}
	if len(files) == 0 {
		errs = append(errs, &missing{name: i.name, dir: i.sup.cfg.PluginDir, kept: kept != nil})
	}
	problems = append(problems, errs...)
	switch {
	case i.rec.Pinned != "":
		return source{sha: i.rec.Pinned}, problems, nil
	case kept != nil:
		return *kept, problems, nil
	case refused != nil:
		return *refused, problems, nil // better to try it again than to run nothing
	default:
		return source{}, problems, errors.Join(errs...)
	}
}

// isWriting says that the file is still being written.
func isWriting(err error) bool { return errors.Is(err, program.ErrWriting) }

// isGone says that a file was removed after the directory had been read. A link that leads nowhere is still there.
func isGone(err error) bool {
	failed := (*fs.PathError)(nil)
	if !errors.As(err, &failed) {
		return false
	}
	_, err = os.Lstat(failed.Path)
	return errors.Is(err, fs.ErrNotExist)
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

// kept returns the copy that served last, or the one before it; nil if there is none that was not refused.
func (i *instance) kept() *source {
	for _, sha := range []string{i.rec.Served, i.rec.LastGood} {
		if _, no := i.rec.Refused[sha]; sha != "" && !no && i.sup.store.has(sha, i.name) {
			return &source{sha: sha}
		}
	}
	return nil
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

// fileIs puts what is wrong with the plugin's files into the status, and reports it once. Empty: nothing is wrong.
func (i *instance) fileIs(problem string) {
	if i.snapshot().FileProblem == problem {
		return
	}
	what := EventFile
	if problem == "" {
		what = ""
	}
	i.set(what, problem, func(s *Status) { s.FileProblem = problem })
}

// hashed is the checksum of a file as it was when last read.
type hashed struct {
	program.Stamp
	SHA256 string
}

// sum returns the checksum of a file that can be run. It reads the file only if it has changed. It
// decides which file is copied; what runs is hashed when it is copied.
func (i *instance) sum(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("open the plugin: %w", err)
	}
	if info.Mode()&0o111 == 0 {
		return "", fmt.Errorf("%s is not executable: run chmod a+x %s", path, path)
	}
	now := hashed{Stamp: program.StampOf(info)}
	was, ok := i.sums[path]
	if now.SHA256 = was.SHA256; ok && now == was {
		return was.SHA256, nil
	}
	if now.SHA256, err = i.read(path); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	i.sums[path] = now
	return now.SHA256, nil
}

// signed returns why a file is not signed as the host requires. It reads the file only if that, or its signature, has
// changed. It is a first look, so that what is wrong shows in the status: the copy is what counts (see store).
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
	if _, now.err = i.sup.store.checkSigned(i.name, f.path, f.path, proof); now.err != nil {
		now.err = permanent{fmt.Errorf("%s: %w", f.path, now.err)}
	}
	i.proofs[f.path] = now
	return now.err
}

// proven is what signed found of a file.
type proven struct {
	sha   string
	proof signing.Proof
	err   error
}

// read returns the checksum of an executable that is complete.
func (i *instance) read(path string) (string, error) {
	f, err := openRegular(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if err := program.CheckWhole(f); err != nil {
		return "", err
	}
	return program.SumOf(f)
}
