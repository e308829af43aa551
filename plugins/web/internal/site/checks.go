package site

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// finding is what a check found.
type finding struct {
	Check string
	// State is ok, warn, fail, or "not shown" where the token does not allow the look.
	State string
	Text  string
	// Command mends it, or shows more.
	Command string
	// Link is the page about it.
	Link string
}

// facts are the answers of the API that the checks and the overview look at. What could not be asked is nil.
type facts struct {
	status  *hostv1.StatusResponse
	nodes   *hostv1.ListNodesResponse
	members *hostv1.ListMembersResponse
	health  *hostv1.AutopilotHealthResponse
	keys    *hostv1.ListKeysResponse
	secrets *hostv1.GetSecretsStatusResponse
	tokens  *hostv1.ListTokensResponse
	waiting []waiting
	errs    map[string]error // by what was asked
	// noKeys: the secrets keys were not asked for.
	noKeys bool
}

// gather asks all that the checks need at once, with keys also for the secrets keys, for which the leader reads all
// volumes. Its error is that of a user who must sign in, or that nothing answers.
func (s *Site) gather(ctx context.Context, u user, keys bool) (*facts, error) {
	f := &facts{errs: map[string]error{}, noKeys: !keys}
	var mu sync.Mutex
	var asking sync.WaitGroup
	look := func(what string, fn func() error) {
		asking.Go(func() {
			err := fn()
			mu.Lock()
			defer mu.Unlock()
			f.errs[what] = err
		})
	}
	look("agent", func() (err error) {
		f.status, err = ask(ctx, u, u.api.Agent.Status, &hostv1.StatusRequest{})
		return err
	})
	look("nodes", func() (err error) {
		f.nodes, err = ask(ctx, u, u.api.Nodes.ListNodes, &hostv1.ListNodesRequest{})
		return err
	})
	look("members", func() (err error) {
		f.members, err = ask(ctx, u, u.api.Members.ListMembers, &hostv1.ListMembersRequest{})
		return err
	})
	look("quorum", func() (err error) {
		f.health, err = ask(ctx, u, u.api.Operator.AutopilotHealth, &hostv1.AutopilotHealthRequest{})
		return err
	})
	look("gossip keys", func() (err error) {
		f.keys, err = ask(ctx, u, u.api.Members.ListKeys, &hostv1.ListKeysRequest{})
		return err
	})
	if keys {
		look("secrets keys", func() (err error) {
			f.secrets, err = ask(ctx, u, u.api.Secrets.GetSecretsStatus, &hostv1.GetSecretsStatusRequest{})
			return err
		})
	}
	look("tokens", func() (err error) {
		f.tokens, err = ask(ctx, u, u.api.Tokens.ListTokens, &hostv1.ListTokensRequest{})
		return err
	})
	look("releases", func() (err error) {
		f.waiting, err = s.waiting(ctx, u)
		return err
	})
	asking.Wait()
	if err := f.errs["agent"]; err != nil && (u.signedOut(err) || connect.CodeOf(err) != connect.CodePermissionDenied) {
		return nil, err
	}
	return f, nil
}

// alone says whether the agent is a single host, which has no peers.
func (f *facts) alone() bool { return f.members != nil && len(f.members.GetMembers()) < 2 }

// findings are what all checks found, in the order of pannier doctor.
func (f *facts) findings() (all []finding) {
	for _, check := range []struct {
		name, asked string
		look        func() []finding
	}{
		{"agent", "agent", f.agent},
		{"disk", "agent", f.disk},
		{"plugins", "agent", f.pluginsOf},
		{"drivers", "agent", f.driversOf},
		{"nodes", "nodes", f.nodesOf},
		{"releases", "releases", f.releasesOf},
		{"leftovers", "agent", f.leftovers},
		{"tokens", "tokens", f.tokensOf},
		{"peers", "members", f.peers},
		{"quorum", "quorum", f.quorum},
		{"gossip keys", "gossip keys", f.gossipKeys},
		{"secrets keys", "secrets keys", f.secretsKeys},
	} {
		if f.noKeys && check.asked == "secrets keys" {
			continue
		}
		var found []finding
		switch err := f.errs[check.asked]; {
		case connect.CodeOf(err) == connect.CodePermissionDenied:
			found = []finding{{State: "not shown", Text: reason(err)}}
		case err != nil && (f.alone() || connect.CodeOf(err) == connect.CodeFailedPrecondition):
			found = []finding{{State: "ok", Text: "a single host has none"}}
		case err != nil:
			found = []finding{{State: "fail", Text: reason(err), Command: "pannier doctor"}}
		default:
			found = check.look()
		}
		for _, one := range found {
			one.Check = check.name
			all = append(all, one)
		}
	}
	return all
}

// problems are the findings that need somebody, the worst first.
func problems(all []finding) (bad []finding) {
	for _, f := range all {
		if f.State == "fail" || f.State == "warn" {
			bad = append(bad, f)
		}
	}
	slices.SortStableFunc(bad, func(a, b finding) int { return cmp.Compare(a.State, b.State) }) // fail before warn
	return bad
}

func fine(format string, args ...any) []finding {
	return []finding{{State: "ok", Text: fmt.Sprintf(format, args...)}}
}

// or returns the problems, or that there are none.
func or(problems []finding, format string, args ...any) []finding {
	if len(problems) > 0 {
		return problems
	}
	return fine(format, args...)
}

func (f *facts) agent() []finding {
	s := f.status
	switch {
	case !s.GetReady():
		return []finding{{State: "fail", Text: s.GetName() + " is not ready: " + s.GetMessage(), Command: "journalctl -u pannier -n 50"}}
	case s.GetUpgrade().GetError() != "":
		return []finding{{
			State: "warn", Command: "pannier agent upgrade",
			Text: fmt.Sprintf("the upgrade to %s failed: %s", s.GetUpgrade().GetTo(), s.GetUpgrade().GetError()),
		}}
	}
	return fine("%s is ready: version %s, process %d", s.GetName(), s.GetVersion(), s.GetPid())
}

// The free space of a data directory in bytes that pannier doctor wants, and that the ledger needs to take claims.
const diskWanted, diskNeeded = 1 << 30, 64 << 20

func (f *facts) disk() []finding {
	s := f.status
	text := fmt.Sprintf("%s of %s: %s of %s left", s.GetDataDir(), s.GetName(), size(s.GetDataDirFree()),
		size(s.GetDataDirSize()))
	command := "du -xh --max-depth=2 " + s.GetDataDir() + " | sort -h | tail"
	switch {
	case s.GetDataDirFree() < diskNeeded:
		return []finding{{State: "fail", Text: text + ": no claim can be taken", Command: command}}
	case s.GetDataDirFree() < diskWanted:
		return []finding{{State: "warn", Text: text, Command: command}}
	}
	return fine("%s", text)
}

func (f *facts) pluginsOf() (found []finding) {
	for _, p := range f.status.GetPlugins() {
		found = append(found, pluginProblems(p)...)
	}
	return or(found, "%s, all serve", count(len(f.status.GetPlugins()), "plugin"))
}

// pluginProblems are those that pannier doctor finds.
func pluginProblems(p *hostv1.Plugin) (found []finding) {
	add := func(state, why, command string) {
		found = append(found, finding{
			State: state, Text: p.GetName() + ": " + why, Command: command + " " + p.GetName(),
			Link: objectlessURL("plugins", p.GetName()),
		})
	}
	switch {
	case p.GetDuplicateOf() != "":
		add("warn", "it is another file of "+p.GetDuplicateOf()+", and does not run", "pannier plugin status")
		return found
	case p.GetState() != "running":
		add("fail", strings.TrimSuffix(p.GetState()+": "+p.GetLastError(), ": "), "pannier plugin logs")
	case p.GetDegraded() != "":
		add("warn", p.GetDegraded(), "pannier plugin rollback")
	}
	for _, why := range []string{p.GetFileProblem(), p.GetConfigProblem()} {
		if why != "" {
			add("warn", why, "pannier plugin status")
		}
	}
	for _, v := range p.GetVersions() {
		switch {
		case v.GetFile() != "" && v.GetRefused() != "":
			add("warn", v.GetFile()+" is refused: "+v.GetRefused(), "pannier plugin versions")
		case v.GetFile() != "" && v.GetWaits():
			add("warn", v.GetFile()+" waits, because the plugin is pinned", "pannier plugin unpin")
		}
	}
	return found
}

func (f *facts) driversOf() (found []finding) {
	look := func(id string, d *hostv1.Driver) {
		add := func(state, why, command string) {
			found = append(found, finding{State: state, Text: id + ": " + why, Command: command, Link: objectlessURL("drivers", id)})
		}
		if !d.GetHealthy() {
			add("fail", strings.TrimSuffix(d.GetType()+" is not healthy: "+d.GetMessage(), ": "), "pannier driver status "+id)
		}
		if why := d.GetProgramProblem(); why != "" {
			add("warn", why, "pannier driver status "+id)
		}
		if d.GetConfigurationWaits() {
			add("warn", "a changed configuration waits until it is not in use", "pannier driver restart "+id)
		}
	}
	for _, d := range f.status.GetDrivers() {
		look(d.GetId(), d)
		if c := d.GetController(); c != nil {
			look(d.GetId(), c)
		}
	}
	return or(found, "%s, all healthy", count(len(f.status.GetDrivers()), "driver"))
}

func (f *facts) nodesOf() (found []finding) {
	for _, n := range f.nodes.GetNodes() {
		link := objectlessURL("nodes", n.GetName())
		switch n.GetStatus() {
		case "down":
			found = append(found, finding{
				State: "fail", Text: fmt.Sprintf("%s is down: its claims were released", n.GetName()), Link: link,
				Command: "pannier node status " + n.GetName(),
			})
		case "disconnected":
			found = append(found, finding{
				State: "fail", Link: link, Command: "pannier node status " + n.GetName(),
				Text: fmt.Sprintf("%s sends no heartbeats; it keeps its claims until its lease has ended", n.GetName()),
			})
		}
		for _, d := range n.GetDrivers() {
			if !d.GetHealthy() && n.GetName() != f.status.GetName() { // this node's are checked more closely
				found = append(found, finding{
					State: "fail", Link: link, Command: "pannier driver status " + d.GetId(),
					Text: fmt.Sprintf("driver %s on %s is not healthy: %s", d.GetId(), n.GetName(), d.GetMessage()),
				})
			}
		}
	}
	return or(found, "%s, all ready", count(len(f.nodes.GetNodes()), "node"))
}

// stuck is how long a release may take before it counts as failed.
const stuck = time.Minute

func (f *facts) releasesOf() (found []finding) {
	for _, w := range f.waiting {
		if w.Error == "" && time.Since(w.Since.AsTime()) < stuck {
			continue
		}
		state := "warn"
		if time.Since(w.Since.AsTime()) > stuck {
			state = "fail"
		}
		found = append(found, finding{
			State: state, Link: "/releases", Command: w.Command,
			Text: strings.TrimSuffix(fmt.Sprintf("%s is not released since %s: %s", w.What(), roughly(time.Since(w.Since.AsTime())),
				cmp.Or(w.Error, w.WaitsFor)), ": "),
		})
	}
	return or(found, "none is late")
}

func (f *facts) leftovers() (found []finding) {
	for _, path := range f.status.GetLeftovers() {
		found = append(found, finding{
			State: "warn", Text: path + " belongs to no workload that the agent knows", Command: "findmnt -R " + path,
		})
	}
	return or(found, "none")
}

func (f *facts) tokensOf() (found []finding) {
	orphans := 0
	for _, t := range f.tokens.GetTokens() {
		if t.GetOrphan() {
			orphans++
		}
	}
	if orphans > 0 {
		return []finding{{
			State: "warn", Text: count(orphans, "token") + " of workloads that are gone, until the next sweep",
			Command: "pannier token sweep", Link: "/services",
		}}
	}
	return fine("%s, each with its workload", count(len(f.tokens.GetTokens()), "token"))
}

func (f *facts) peers() (found []finding) {
	for _, m := range f.members.GetMembers() {
		if m.GetStatus() != "alive" && m.GetStatus() != "left" {
			found = append(found, finding{
				State: "fail", Text: fmt.Sprintf("%s is %s: no gossip arrives from %s", m.GetName(), m.GetStatus(), m.GetAddress()),
				Command: "pannier server members",
			})
		}
	}
	if f.alone() {
		return fine("a single host has none")
	}
	return or(found, "%s, all alive", count(len(f.members.GetMembers()), "agent"))
}

func (f *facts) quorum() []finding {
	voters := 0
	var sick []string
	for _, p := range f.health.GetPeers() {
		if p.GetVoter() {
			voters++
		}
		if !p.GetHealthy() {
			sick = append(sick, p.GetName())
		}
	}
	if f.alone() {
		return fine("a single host")
	}
	say := fmt.Sprintf("%s, of which %d may fail", count(voters, "voting server"), f.health.GetFailureTolerance())
	switch {
	case len(sick) > 0:
		return []finding{{
			State: "fail", Text: say + "; not healthy: " + strings.Join(sick, ", "), Command: "pannier operator autopilot health",
		}}
	case f.health.GetFailureTolerance() == 0:
		return []finding{{
			State: "warn", Text: say + ": the next failure stops new claims", Command: "pannier operator autopilot health",
		}}
	}
	return fine("%s", say)
}

func (f *facts) gossipKeys() (found []finding) {
	agents := f.keys.GetAgents()
	for _, k := range f.keys.GetKeys() {
		if k.GetAgents() != agents || k.GetPrimary() != 0 && k.GetPrimary() != agents {
			found = append(found, finding{
				State: "warn", Command: "pannier keyring list",
				Text: fmt.Sprintf("%d of %d agents have the key %s, and %d encrypt with it", k.GetAgents(), agents, k.GetId(), k.GetPrimary()),
			})
		}
	}
	if why := f.keys.GetProblem(); why != "" {
		found = append(found, finding{State: "warn", Text: why, Command: "pannier keyring list"})
	}
	return or(found, "%s, the same on %s", count(len(f.keys.GetKeys()), "key"), count(agents, "agent"))
}

func (f *facts) secretsKeys() (found []finding) {
	if why := f.secrets.GetProblem(); why != "" {
		found = append(found, finding{State: "fail", Text: why, Command: "pannier operator secrets status"})
	}
	for _, k := range f.secrets.GetKeys() {
		if !k.GetHere() {
			found = append(found, finding{
				State: "fail", Command: "pannier operator secrets status",
				Text: fmt.Sprintf("the server that answers lacks the key %s, which %s need", k.GetId(), count(k.GetSealed(), "record")),
			})
		}
	}
	return or(found, "%s, all there", count(len(f.secrets.GetKeys()), "key"))
}

// checks is the page of all findings.
func (s *Site) checks(ctx context.Context, u user, _ *http.Request) (any, error) {
	f, err := s.gather(ctx, u, true)
	if err != nil {
		return nil, err
	}
	return f.findings(), nil
}
