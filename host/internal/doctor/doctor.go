package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/system/mountuse"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// checkPatience bounds one check.
const checkPatience = 5 * time.Second

// Status is how bad a finding is.
type Status string

const (
	// OK says that there is nothing to do.
	OK Status = "ok"
	// Skipped says that it does not concern this machine, or could not be checked.
	Skipped Status = "skipped"
	// Warn says that something will fail later, or works less well than it should.
	Warn Status = "warn"
	// Fail says that something does not work.
	Fail Status = "fail"
)

// Finding is one row of the table.
type Finding struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	// Why says what was found.
	Why string `json:"why"`
	// Command mends it; empty: there is nothing to mend, or no single command does.
	Command string `json:"command,omitempty"`
	// Fixed says what -fix did.
	Fixed string `json:"fixed,omitempty"`

	fix func(ctx context.Context) error // nil: only a person may mend it
}

// Patient is what is checked.
type Patient struct {
	// Config is the agent's configuration; nil: ConfigErr says why there is none.
	Config    *config.Agent
	ConfigErr error
	// Client calls the agent.
	Client *api.Client
	// CheckSetup is pannier setup consul -check of a consul block; ErrNoManagement: nothing lets it read Consul's ACLs.
	CheckSetup func(ctx context.Context, consul string) ([]SetupStep, error)
	// Fix mends what can be mended without risk.
	Fix bool

	status    *hostv1.StatusResponse // nil: statusErr says why
	statusErr error
	mounts    mountTable
}

// Examine makes all checks. A check that finds several things returns several findings, and each returns at least one.
func Examine(ctx context.Context, p Patient) ([]Finding, error) {
	var err error
	if p.mounts, err = mountuse.Read(mountuse.Self); err != nil {
		return nil, err
	}
	p.askAgent(ctx)
	var all []Finding
	for _, c := range checks {
		found := p.make(ctx, c)
		for i := range found {
			found[i].Check = c.name
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
	done := make(chan []Finding, 1)
	go func() { done <- c.look(p, ctx) }()
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

// or returns the problems, or if there are none that all is well.
func or(problems []Finding, format string, args ...any) []Finding {
	if len(problems) > 0 {
		return problems
	}
	return ok(format, args...)
}

// unconfigured returns why a check that needs the configuration cannot be made; nil: it can.
func (p *Patient) unconfigured() []Finding {
	if p.Config != nil {
		return nil
	}
	return skipped("needs the agent's configuration")
}

// unanswered returns why a check that needs the agent cannot be made; nil: it can.
func (p *Patient) unanswered() []Finding {
	if p.status != nil {
		return nil
	}
	return skipped("needs the agent, which does not answer")
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
