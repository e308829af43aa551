package doctor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/system/mountuse"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

const (
	// checkPatience bounds one check.
	checkPatience = 5 * time.Second
	// callPatience bounds the calls that a check makes, so that one without an answer is told from a check that hangs.
	callPatience = 4 * time.Second
)

// Status is how bad a finding is.
type Status string

const (
	// OK means that there is nothing to do.
	OK Status = "ok"
	// Skipped means that it does not concern this machine, or could not be checked.
	Skipped Status = "skipped"
	// Warn means that something will fail later, or works less well than it should.
	Warn Status = "warn"
	// Fail means that something does not work.
	Fail Status = "fail"
)

// Finding is one row of the table.
type Finding struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	// Why is what was found.
	Why string `json:"why"`
	// Subject is the plugin or driver that it is about; empty: neither.
	Subject string `json:"subject,omitempty"`
	// Command mends it; empty: there is nothing to mend, or no single command does.
	Command string `json:"command,omitempty"`
	// Fixed is what -fix did.
	Fixed string `json:"fixed,omitempty"`

	fix func(ctx context.Context) error // nil: only a person may mend it
}

// Patient is what is checked.
type Patient struct {
	// Config is the agent's configuration; nil: ConfigErr explains why there is none. With both, the agent runs with
	// Config, and its files have mistakes by now.
	Config    *config.Agent
	ConfigErr error
	// Client calls the agent.
	Client *api.Client
	// CheckSetup is pannier setup consul -check of a consul block; ErrNoManagement: nothing lets it read Consul's ACLs;
	// nil: that is not known here.
	CheckSetup func(ctx context.Context, consul string) ([]SetupStep, error)
	// Fix mends what can be mended without risk.
	Fix bool
	// Unended has the checks of earlier examinations that have not ended, which are not made a second time; nil: there
	// were none.
	Unended *sync.Map

	status    *hostv1.StatusResponse // nil: statusErr says why
	statusErr error
	mounts    mountTable
}

// Examine makes all checks, at once, so that it takes no longer than two checks may. A check that finds several things
// returns several findings, and each returns at least one.
func Examine(ctx context.Context, p Patient) ([]Finding, error) {
	var err error
	if p.mounts, err = mountuse.Read(mountuse.Self); err != nil {
		return nil, err
	}
	if p.Unended == nil {
		p.Unended = &sync.Map{}
	}
	p.askAgent(ctx)
	made := make([][]Finding, len(checks))
	var making sync.WaitGroup
	for n, c := range checks {
		making.Go(func() { made[n] = p.make(ctx, c) })
	}
	making.Wait()
	var all []Finding
	for n, found := range made {
		for i := range found {
			found[i].Check = checks[n].name
			if p.Fix {
				found[i].mend(ctx)
			}
		}
		all = append(all, found...)
	}
	return all, nil
}

// make makes one check. One that does not end in time, such as by a hung disk, is a finding itself.
func (p *Patient) make(ctx context.Context, c check) []Finding {
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	if _, hangs := p.Unended.LoadOrStore(c.name, struct{}{}); hangs {
		return one(Fail, "the check of an earlier examination has not ended: something that it looks at hangs", "")
	}
	done := make(chan []Finding, 1)
	go func() {
		defer p.Unended.Delete(c.name)
		defer func() {
			if reason := recover(); reason != nil { // it must not end the agent
				done <- one(Fail, fmt.Sprintf("a bug in the check: %v", reason), "")
			}
		}()
		if lacking := p.lacks(c.needs); lacking != nil {
			done <- lacking
			return
		}
		calls, cancel := context.WithTimeout(ctx, callPatience)
		defer cancel()
		done <- c.look(p, calls)
	}()
	select {
	case found := <-done:
		return found
	case <-ctx.Done():
		return one(Fail, fmt.Sprintf("the check has not ended within %s: something that it looks at hangs", checkPatience), "")
	}
}

// mend mends a finding if that is safe.
func (f *Finding) mend(ctx context.Context) {
	if f.fix == nil || f.Status == OK {
		return
	}
	if err := f.fix(ctx); err != nil {
		f.Fixed = "not mended: " + err.Error()
		return
	}
	f.Fixed, f.Status = "mended", OK
}

// Worst returns the worst status; OK if there are no findings.
func Worst(all []Finding) Status {
	worst := OK
	for _, f := range all {
		if f.Status == Fail || f.Status == Warn && worst == OK {
			worst = f.Status
		}
	}
	return worst
}

func one(s Status, why, command string) []Finding {
	return []Finding{{Status: s, Why: why, Command: command}}
}

func ok(format string, args ...any) []Finding { return one(OK, fmt.Sprintf(format, args...), "") }

func skipped(format string, args ...any) []Finding {
	return one(Skipped, fmt.Sprintf(format, args...), "")
}

// unread is the finding of what the agent does not answer: nothing is wrong if the caller's token does not allow it.
func unread(s Status, what string, err error, command string) []Finding {
	switch {
	case connect.CodeOf(err) == connect.CodePermissionDenied:
		s, command = Skipped, "pannier acl token self"
	case unanswered(err): // by the leader: the agent itself has answered
		what, command = what+", as without a majority of the servers", "pannier server members"
	}
	return one(s, fmt.Sprintf("%s: %v", what, err), command)
}

// unanswered reports whether an error means that nobody has answered.
func unanswered(err error) bool {
	code := connect.CodeOf(err)
	return code == connect.CodeUnavailable || code == connect.CodeDeadlineExceeded ||
		errors.Is(err, context.DeadlineExceeded)
}

// or returns the problems, or if there are none that all is well.
func or(problems []Finding, format string, args ...any) []Finding {
	if len(problems) > 0 {
		return problems
	}
	return ok(format, args...)
}

// lacks returns why a check cannot be made; nil: it can.
func (p *Patient) lacks(needs need) []Finding {
	switch {
	case needs&answering != 0 && p.status == nil && !unanswered(p.statusErr):
		return skipped("needs the agent's state, which cannot be read: %v", p.statusErr)
	case needs&answering != 0 && p.status == nil:
		return skipped("needs the agent, which does not answer")
	case needs&configured != 0 && p.Config == nil:
		return skipped("needs the agent's configuration")
	case needs&clustered != 0 && p.Config.TLS == nil:
		return skipped("a single host")
	default:
		return nil
	}
}

// dataDir is the agent's data directory.
func (p *Patient) dataDir() string {
	switch {
	case p.status != nil:
		return p.status.GetDataDir()
	case p.Config != nil:
		return p.Config.DataDir
	default:
		return config.DefaultDataDir
	}
}
