package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/convert"
)

var workloadColumns = columns[*hostv1.Workload]{
	[]string{"ID", "NAMESPACE", "STATE", "VOLUMES", "SERVICES", "PID", "AGE", "MESSAGE"},
	func(t *Table, w *hostv1.Workload) {
		t.Row(w.GetSpec().GetId(), w.GetSpec().GetNamespace(), stateCell(w.GetState()), len(w.GetSpec().GetVolumes()),
			len(w.GetSpec().GetServices()), number(w.GetPid()), age(w.GetStartedAt()), w.GetMessage())
	},
	"no workloads; start one with pannier workload run or pannier workload start",
}

// showWorkload shows a workload, and those who have its volumes.
func showWorkload(p *Printer, w *hostv1.Workload, holders ...*hostv1.Holder) {
	t := NewTable()
	t.Row("ID", w.GetSpec().GetId())
	t.Row("Namespace", w.GetSpec().GetNamespace())
	t.Row("Node", w.GetNode())
	t.Row("State", stateCell(w.GetState()))
	said := w.GetMessage()
	if w.GetRelease() == nil || said != w.GetRelease().GetError() {
		t.Row("Message", said)
	}
	if len(w.GetWaitsFor()) > 0 {
		t.Row("Waits for", strings.Join(w.GetWaitsFor(), ", "))
		t.Row("Waits since", age(w.GetWaitsSince()))
	}
	if w.GetRelease() != nil {
		t.Row("Not released", Cell{releaseText(w.GetRelease(), w.GetNode()), Yellow})
	}
	t.Row("Process", number(w.GetPid()))
	t.Row("Released with", number(w.GetOwnerPid()))
	t.Row("Started", age(w.GetStartedAt()))
	t.some("Ended", age(w.GetEndedAt()))
	t.some("Ports", joinMap(w.GetPorts()))
	t.some("Secrets", w.GetSecretsDir())
	p.Show(t)
	p.Section("Mounts", mountTable(w))
	held := NewTable("VOLUME", "OWNER", "PID", "COMMAND", "PATH", "ENDED BY")
	for _, h := range holders {
		held.Row(h.GetRequest(), h.GetOwner(), number(h.GetPid()), h.GetCommand(), h.GetPath(), h.GetStop())
	}
	p.Section("Holders", held)
	devices := NewTable("REQUEST", "GROUP", "ID", "PLUGIN")
	for _, d := range w.GetDevices() {
		devices.Row(d.GetRequest(), d.GetGroup(), d.GetId(), d.GetPlugin())
	}
	p.Section("Devices", devices)
	for _, s := range w.GetServices() {
		p.heading("Service " + s.GetName())
		p.Show(serviceTable(s))
	}
	if len(w.GetSteps()) == 0 {
		return
	}
	p.heading("Steps")
	for _, s := range w.GetSteps() {
		line := stepLine{step: s, since: s.GetStartedAt().AsTime(), brief: strings.Contains(said, s.GetError())}
		p.write(line.text(p.colored(p.Out)) + "\n")
	}
}

// mountTable has what a workload has mounted, and what its devices need.
func mountTable(w *hostv1.Workload) *Table {
	access := func(m interface{ GetReadOnly() bool }) string {
		if m.GetReadOnly() {
			return "read-only"
		}
		return "read-write"
	}
	t := NewTable("VOLUME", "DESTINATION", "HOST PATH", "ACCESS", "KIND")
	for _, m := range w.GetMounts() {
		kind := "folder"
		if m.GetBlock() {
			kind = "device"
		}
		name := m.GetVolume()
		if m.GetDriver() != "" {
			name, kind = m.GetRequest(), "folder, made by "+m.GetDriver()
		}
		t.Row(name, m.GetDestination(), m.GetHostPath(), access(m), kind)
	}
	for _, m := range w.GetReservation().GetMounts() {
		t.Row("", m.GetTaskPath(), m.GetHostPath(), access(m), "of a device")
	}
	for _, d := range w.GetReservation().GetNodes() {
		t.Row("", d.GetTaskPath(), d.GetHostPath(), d.GetPermissions(), "device")
	}
	return t
}

// serviceTable has the status of a service, without empty values.
func serviceTable(s *hostv1.ServiceStatus) *Table {
	t := NewTable()
	t.Row("ID", s.GetId())
	t.some("Proxy", s.GetProxyId())
	t.Row("Consul", s.GetConsul())
	t.some("Port", s.GetPort())
	t.some("Token", s.GetTokenAccessor())
	t.some("Token expires", ahead(s.GetTokenExpiresAt()))
	t.some("Token file", s.GetTokenFile())
	t.some("Bootstrap file", s.GetBootstrapFile())
	t.some("Admin socket", s.GetAdminSocket())
	t.some("Ready socket", s.GetReadySocket())
	t.some("Admin port", s.GetAdminPort())
	t.some("Ready port", s.GetReadyPort())
	t.some("Proxy state", s.GetProxy().GetState())
	t.some("Proxy since", age(s.GetProxy().GetSince()))
	t.some("Proxy restarts", s.GetProxy().GetRestarts())
	t.some("Proxy's last exit", s.GetProxy().GetLastExit())
	t.some("Message", Cell{s.GetMessage(), Yellow})
	return t
}

func validateWorkload(ctx context.Context, c *call, spec *hostv1.WorkloadSpec) error {
	resp, err := c.Workloads.CheckWorkload(ctx, &hostv1.CheckWorkloadRequest{Spec: spec})
	if unreachable := (*api.UnreachableError)(nil); errors.As(err, &unreachable) {
		c.Note("%s has no mistake in itself; the rest needs an agent", c.args[0])
	}
	if err == nil {
		if missing := (&run{call: c, path: c.args[0], spec: spec}).readPrograms(); missing != nil {
			resp.Problems = append(resp.GetProblems(), missing.Error())
		}
	}
	if len(resp.GetProblems()) > 0 {
		return problems(c, resp.GetProblems(), "workload %q cannot be started on node %q", spec.GetId(), resp.GetNode())
	}
	return c.Done(resp, err, "workload %q is valid on node %q", spec.GetId(), resp.GetNode())
}

// problems prints what is in the way, and returns an error that sums it up.
func problems(c *call, all []string, summary string, args ...any) error {
	for _, problem := range all {
		c.Note("problem: %s", problem)
	}
	return Hinted(Coded(ExitRefused, fmt.Errorf(summary, args...)), "nothing was changed")
}

// dryRun is what a start would do, as -o json prints it.
type dryRun struct {
	Workload string      `json:"workload"`
	Node     string      `json:"node"`
	State    string      `json:"state"`
	Outcome  string      `json:"outcome"`
	Volumes  []dryVolume `json:"volumes"`
	Problems []string    `json:"problems"`
}

// dryVolume is what a start would do with a volume. Refused is why the workload would not get its claim.
type dryVolume struct {
	Request        string   `json:"request"`
	Volume         string   `json:"volume"`
	Driver         string   `json:"driver"`
	Mode           string   `json:"mode"`
	AccessMode     string   `json:"access_mode"`
	AttachmentMode string   `json:"attachment_mode"`
	Holders        []string `json:"holders"`
	Refused        string   `json:"refused"`
}

// dryStart prints what a start would do and who has what, and changes nothing. It is an error if the start would be
// refused.
func dryStart(ctx context.Context, c *call, spec *hostv1.WorkloadSpec) error {
	resp, err := c.Workloads.CheckWorkload(ctx, &hostv1.CheckWorkloadRequest{Spec: spec})
	if err != nil {
		return err
	}
	d := dryRun{
		spec.GetId(), resp.GetNode(), resp.GetState(), outcome(spec, resp),
		[]dryVolume{},
		append([]string{}, resp.GetProblems()...),
	}
	all := resp.GetProblems()
	if err := takes(ctx, c, resp.GetNode(), spec.GetNamespace()); errors.Is(err, claim.ErrIneligible) ||
		errors.Is(err, claim.ErrUnbound) { // who may not read nodes is not told
		all = append(all, err.Error())
	}
	for _, v := range resp.GetVolumes() {
		one := dryVolume{
			v.GetRequest(), v.GetVolume(), v.GetDriver(), v.GetMode(), v.GetAccessMode(), v.GetAttachmentMode(), []string{}, "",
		}
		if v.GetVolume() != "" { // else its driver makes it for this workload
			if err := one.claim(ctx, c, spec, resp.GetNode(), ""); err != nil {
				return err
			}
		}
		if one.Refused != "" {
			all = append(all, one.Refused)
		}
		d.Volumes = append(d.Volumes, one)
	}
	if err := c.Print(d, nil, func() { showDryRun(c.Printer, d) }); err != nil {
		return err
	}
	if len(all) > 0 {
		return problems(c, all, "workload %q would not start on node %q now", spec.GetId(), resp.GetNode())
	}
	return nil
}

// takes returns why a node starts no workloads of a namespace now.
func takes(ctx context.Context, c *call, name, namespace string) error {
	resp, err := c.Nodes.GetNode(ctx, &hostv1.GetNodeRequest{Name: name})
	if err != nil {
		return err
	}
	have := resp.GetNode()
	n := claim.Node{
		Name: name, Status: claim.NodeStatus(have.GetStatus()), StatusAt: have.GetStatusAt().AsTime(),
		Ineligible: !have.GetEligible(), Namespaces: have.GetNamespaces(),
	}
	if have.GetDrain() != nil {
		n.Drain = &claim.Drain{StartedAt: have.GetDrain().GetStartedAt().AsTime()}
	}
	return cmp.Or(n.CheckEligible(), n.CheckNamespace(namespace))
}

// claim finds out who has a volume, and whether the workload would get its claim on a node, after it has left another
// one if that is named.
func (v *dryVolume) claim(ctx context.Context, c *call, spec *hostv1.WorkloadSpec, node, left string) error {
	resp, err := c.Volumes.GetVolume(ctx, &hostv1.GetVolumeRequest{Namespace: spec.GetNamespace(), Id: v.Volume})
	if err != nil {
		return err
	}
	have := resp.GetVolume()
	ref := claim.VolumeRef{Namespace: spec.GetNamespace(), ID: v.Volume}
	volume := convert.From[claim.Volume](have)
	var held []claim.Claim
	for _, one := range have.GetClaims() {
		h := claim.Claim{
			Volume: ref, Workload: claim.WorkloadRef{Namespace: one.GetNamespace(), ID: one.GetWorkload()}, Node: one.GetNode(),
			Mode: claim.Mode(one.GetMode()), AccessMode: claim.AccessMode(one.GetAccessMode()),
			AttachmentMode: claim.AttachmentMode(one.GetAttachmentMode()), State: claim.State(one.GetState()),
			TakenAt: one.GetTakenAt().AsTime(),
		}
		if h.Node == left && h.Workload == (claim.WorkloadRef{Namespace: spec.GetNamespace(), ID: spec.GetId()}) {
			continue
		}
		held = append(held, h)
		v.Holders = append(v.Holders, fmt.Sprintf("%s on %s (%s)", h.Workload, h.Node, h.Mode))
	}
	_, _, err = claim.Take(volume, held, claim.Claim{
		Volume: ref, Workload: claim.WorkloadRef{Namespace: spec.GetNamespace(), ID: spec.GetId()}, Node: node,
		Mode: claim.Mode(v.Mode), AccessMode: claim.AccessMode(v.AccessMode),
		AttachmentMode: claim.AttachmentMode(v.AttachmentMode),
	}, time.Now())
	if err != nil {
		v.Refused = err.Error()
	}
	return nil
}

func showDryRun(p *Printer, d dryRun) {
	p.Say("workload %q on node %q: %s", d.Workload, d.Node, d.Outcome)
	if len(d.Volumes) == 0 {
		return
	}
	t := NewTable("VOLUME", "SOURCE", "DRIVER", "CLAIM", "ACCESS MODE", "ATTACHMENT", "HELD BY", "WOULD BE")
	for _, v := range d.Volumes {
		would := Cell{"granted", Green}
		switch {
		case v.Volume == "":
			would.Text = "made"
		case v.Refused != "":
			would = Cell{"refused", Red}
		}
		t.Row(v.Request, v.Volume, v.Driver, v.Mode, v.AccessMode, v.AttachmentMode, listed(v.Holders), would)
	}
	p.Show(t)
}

// outcome says in words what a start would do first.
func outcome(spec *hostv1.WorkloadSpec, now *hostv1.CheckWorkloadResponse) string {
	waits := slices.Concat(spec.GetAfter(), spec.GetReplaces())
	switch {
	case now.GetState() == "stopping":
		return "a start would wait for the end of its earlier run"
	case now.GetState() != "" && len(now.GetProblems()) == 0:
		return fmt.Sprintf("it is %s; a start would change nothing but its services", now.GetState())
	case len(waits) > 0:
		return "a start would wait for the end of " + listed(waits)
	default:
		return "a start would claim its volumes"
	}
}
