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
	"google.golang.org/protobuf/types/known/timestamppb"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// finding is what a check found.
type finding struct {
	Check string
	// State is ok, warn, fail, skipped, or "not shown" where the token does not allow the look.
	State string
	Text  string
	// Command mends it, or shows more.
	Command string
	// On is the node where a command runs that is not pannier's own.
	On string
	// Link is the page about it.
	Link string
	// About names the node or driver that it is about, and Of those whose problem it follows from, the furthest first.
	About string
	Of    []string
	// With are the findings that follow from this one.
	With []string
}

// facts are the answers of the API that the checks and the overview look at. What could not be asked is nil.
type facts struct {
	status   *hostv1.StatusResponse
	nodes    *hostv1.ListNodesResponse
	health   *hostv1.AutopilotHealthResponse
	tokens   *hostv1.ListTokensResponse
	examined *hostv1.ExamineResponse
	host     string // that was examined; empty: this one
	waiting  []waiting
	errs     map[string]error // by what was asked
	// unexamined: the host was not examined.
	unexamined bool
}

// gather asks all that the checks need at once. For an examination of a host (empty: this one), which takes longer, it
// waits for patience (0: it asks for none); the agent goes on with it, for the next call. Its error is that of a user
// who must sign in, or that nothing answers.
func (h host) gather(ctx context.Context, u user, host string, patience time.Duration) (*facts, error) {
	f := &facts{host: host, errs: map[string]error{}, unexamined: patience == 0}
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
	look("agent", answer(ctx, &f.status, h.Agent.Status, &hostv1.StatusRequest{}))
	look("nodes", answer(ctx, &f.nodes, h.Nodes.ListNodes, &hostv1.ListNodesRequest{}))
	look("quorum", answer(ctx, &f.health, h.Operator.AutopilotHealth, &hostv1.AutopilotHealthRequest{}))
	if patience > 0 {
		look("host", func() (err error) {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			f.examined, err = h.Agent.Examine(ctx, &hostv1.ExamineRequest{Node: host})
			f.unexamined = connect.CodeOf(err) == connect.CodeDeadlineExceeded
			return err
		})
	}
	look("tokens", answer(ctx, &f.tokens, h.Tokens.ListTokens, &hostv1.ListTokensRequest{}))
	look("releases", func() (err error) {
		f.waiting, err = h.waiting(ctx)
		return err
	})
	asking.Wait()
	if err := f.errs["agent"]; err != nil && (u.signedOut(err) || connect.CodeOf(err) != connect.CodePermissionDenied) {
		return nil, err
	}
	return f, nil
}

// answer makes a call whose answer is stored.
func answer[Q, A any](ctx context.Context, to *A, call func(context.Context, Q) (A, error), req Q) func() error {
	return func() (err error) {
		*to, err = call(ctx, req)
		return err
	}
}

// findings are what all checks found, each problem once.
func (f *facts) findings() (all []finding) {
	for _, check := range []struct {
		name string
		look func() []finding
	}{
		{"nodes", f.nodesOf},
		{"host", f.examinedOf},
		{"releases", f.releasesOf},
		{"tokens", f.tokensOf},
	} {
		if f.unexamined && check.name == "host" {
			continue
		}
		var found []finding
		switch err := f.errs[check.name]; {
		case connect.CodeOf(err) == connect.CodePermissionDenied:
			found = []finding{{State: "not shown", Text: reason(err)}}
		case err != nil:
			found = []finding{{State: "fail", Text: reason(err), Command: "pannier doctor", About: reason(err)}}
			found[0].Of = []string{found[0].About} // one outage fails many questions
		default:
			found = check.look()
		}
		for _, one := range found {
			one.Check = cmp.Or(one.Check, check.name)
			all = append(all, one)
		}
	}
	return fold(all)
}

// bad means that somebody has to do something.
func (f finding) bad() bool { return f.State == "fail" || f.State == "warn" }

// fold shows each problem once, at its cause: a node that is lost is one, not one for each of its drivers and releases.
func fold(all []finding) []finding {
	causes := map[string]int{}
	for n, f := range all {
		if _, known := causes[f.About]; f.bad() && f.About != "" && !known {
			causes[f.About] = n
		}
	}
	var root func(n int) int
	root = func(n int) int {
		for _, about := range all[n].Of {
			if cause, known := causes[about]; known && cause != n {
				return root(cause)
			}
		}
		return n
	}
	for n, f := range all {
		if cause := root(n); f.bad() && cause != n {
			all[cause].With = append(all[cause].With, strings.TrimSuffix(f.Check+": "+f.Text, ": "+all[cause].Text))
			all[n].Check = ""
		}
	}
	return slices.DeleteFunc(all, func(f finding) bool { return f.Check == "" })
}

// problems are the findings that need somebody, the worst first.
func problems(all []finding) []finding {
	bad := slices.DeleteFunc(slices.Clone(all), func(f finding) bool { return !f.bad() })
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

func nodeKey(name string) string         { return "node " + name }
func driverKey(id, node string) string   { return "driver " + id + " on " + node }
func pluginKey(name, node string) string { return "plugin " + name + " on " + node }

// examinedNode is the name of the node that is examined.
func (f *facts) examinedNode() string {
	return cmp.Or(f.examined.GetNode(), f.host, f.status.GetName())
}

// examinedOf are the findings of pannier doctor.
func (f *facts) examinedOf() (found []finding) {
	host := f.examinedNode()
	for _, d := range f.examined.GetFindings() {
		if d.GetCheck() == "releases" && f.errs["releases"] == nil {
			continue // the cluster's have those of this host
		}
		if d.GetCheck() == "drivers" && d.GetSubject() != "" && !f.has(host, d.GetSubject()) {
			continue
		}
		one := finding{Check: d.GetCheck(), State: d.GetStatus(), Text: d.GetWhy(), Command: d.GetCommand(), On: host}
		if d.GetSubject() != "" { // of plugins or drivers, as their pages are called
			one.Link = onNode(objectlessURL(d.GetCheck(), d.GetSubject()), f.host)
		}
		switch d.GetCheck() {
		case "plugins":
			one.About = pluginKey(d.GetSubject(), host)
		case "drivers":
			one.About = driverKey(d.GetSubject(), host)
			one.Of = []string{pluginKey("csi-bridge", host)}
		case "peers": // it begins with the name of the other agent
			name, _, _ := strings.Cut(d.GetWhy(), " ")
			one.Of = []string{nodeKey(name)}
		case "quorum":
			for _, p := range f.health.GetPeers() {
				if !p.GetHealthy() {
					one.Of = append(one.Of, nodeKey(p.GetName()))
				}
			}
		}
		found = append(found, one)
	}
	return found
}

// has reports whether a node has a driver; also where that is not known.
func (f *facts) has(node, driver string) bool {
	for _, n := range f.nodes.GetNodes() {
		if n.GetName() == node {
			return slices.ContainsFunc(n.GetDrivers(), func(d *hostv1.NodeDriver) bool { return d.GetId() == driver })
		}
	}
	return true
}

const readyNode = "ready"

func (f *facts) nodesOf() (found []finding) {
	for _, n := range f.nodes.GetNodes() {
		one := finding{
			State: "fail", Link: objectlessURL("nodes", n.GetName()), Command: "pannier node status " + n.GetName(),
			About: nodeKey(n.GetName()),
		}
		switch n.GetStatus() {
		case "down":
			one.Text = n.GetName() + " is down: its claims were released"
		case "disconnected":
			one.Text = n.GetName() + " sends no heartbeats; it keeps its claims until its lease has ended"
		}
		if one.Text != "" {
			found = append(found, one)
			continue // nobody reaches its drivers
		}
		for _, d := range n.GetDrivers() {
			if !d.GetHealthy() && n.GetName() != f.examinedNode() { // those there are checked more closely
				found = append(found, finding{
					State: "fail", Link: one.Link, Command: "pannier driver status " + d.GetId(),
					About: driverKey(d.GetId(), n.GetName()),
					Text:  fmt.Sprintf("driver %s on %s is not healthy: %s", d.GetId(), n.GetName(), d.GetMessage()),
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
			State: state, Link: "/releases", Command: w.Command, On: w.Node, Of: w.Of(),
			Text: strings.TrimSuffix(fmt.Sprintf("%s is not released since %s: %s", w.What(), roughly(time.Since(w.Since.AsTime())),
				cmp.Or(w.Error, w.WaitsFor)), ": "),
		})
	}
	return or(found, "none is late")
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

// urgency orders findings: what needs somebody comes first.
func urgency(f finding) int { return slices.Index([]string{"warn", "fail"}, f.State) }

type checksData struct {
	// Node was examined at a time.
	Node     string
	At       *timestamppb.Timestamp
	Choices  []string
	Findings []finding
	// Unexamined: those of the host are not among them yet.
	Unexamined bool
}

// checks is the page of all findings.
func (s *Site) checks(ctx context.Context, u user, r *http.Request) (any, error) {
	host := nodeOf(r)
	f, err := s.host.gather(ctx, u, host, callTimeout-time.Second)
	if err != nil {
		return nil, err
	}
	all := f.findings()
	slices.SortStableFunc(all, func(a, b finding) int { return cmp.Compare(urgency(b), urgency(a)) })
	nodes, _ := s.host.choices(ctx)
	return checksData{f.examinedNode(), f.examined.GetAt(), nodes, all, f.unexamined}, nil
}
