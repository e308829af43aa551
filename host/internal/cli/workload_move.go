package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pannier/pannier/cluster/claim"
	escape "github.com/pannier/pannier/internal/printable"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func moveVerb() verb {
	var to string
	return verb{
		use: "move ID", short: "Stop a workload on its node, and start it on another one", example: "redis -to n2",
		long: `Stop a workload of pannier workload start on its node, wait until its volumes are released, and
start it with the same spec on another node. What can be checked is checked first: a workload that
the other node would refuse is not stopped. One that cannot be started there is started again where
it was; the exit code is 4 then.

What pannier workload run, Docker or systemd runs is not moved: the error says what to run on which
host. With ACLs a token is needed also by root.`,
		flags: func(f *pflag.FlagSet) { f.StringVar(&to, "to", "", "the `NODE` that the workload is started on") },
		needs: []string{"to"},
		run: func(ctx context.Context, c *call) error {
			if err := claim.CheckID(c.args[0]); err != nil {
				return Usage("workload id: %w", err)
			}
			m := move{call: c, ref: claim.WorkloadRef{Namespace: c.inNamespace(), ID: c.args[0]}, to: to}
			if err := m.find(ctx); err != nil {
				return err
			}
			if err := m.check(ctx); err != nil {
				return err
			}
			w, err := m.move(ctx)
			return c.Print(&hostv1.GetWorkloadResponse{Workload: w}, err, func() {
				c.Note("workload %q is moved from node %q to node %q", m.ref, m.from, m.to)
				c.Show(mountTable(w))
			})
		},
	}
}

// move brings a workload from one node to another one.
type move struct {
	*call
	ref      claim.WorkloadRef
	from, to string
	spec     *hostv1.WorkloadSpec
}

// find finds the node that the workload is on.
func (m *move) find(ctx context.Context) error {
	all, err := m.Nodes.ListNodes(ctx, &hostv1.ListNodesRequest{})
	if err != nil {
		return err
	}
	for _, n := range all.GetNodes() {
		on, err := m.Nodes.GetNode(ctx, &hostv1.GetNodeRequest{Name: n.GetName()})
		if err != nil {
			return err
		}
		if slices.ContainsFunc(on.GetWorkloads(), func(w *hostv1.NodeWorkload) bool {
			return w.GetNamespace() == m.ref.Namespace && w.GetId() == m.ref.ID
		}) {
			m.from = n.GetName()
			return nil
		}
	}
	return Hinted(Coded(ExitNotFound, fmt.Errorf("workload %q is on no node", m.ref)),
		"pannier workload status -node NODE lists the workloads of a node")
}

// check returns why the workload cannot be moved. It changes nothing.
func (m *move) check(ctx context.Context) error {
	resp, err := m.Workloads.GetWorkload(ctx,
		&hostv1.GetWorkloadRequest{Namespace: m.ref.Namespace, Id: m.ref.ID, Holders: true, Node: m.from})
	if err != nil {
		return err
	}
	w := resp.GetWorkload()
	m.spec = w.GetSpec()
	refused := func(format string, args ...any) error {
		return Coded(ExitRefused, fmt.Errorf("workload %q is on node %q and "+format, append([]any{m.ref, m.from}, args...)...))
	}
	if m.from == m.to {
		return refused("does not have to be moved")
	}
	if w.GetState() != "running" {
		return Hinted(refused("is %s; only one that runs is moved", w.GetState()), "%s says more", m.status())
	}
	if by, end, begin := runner(w, resp.GetHolders()); by != "" {
		return refused("is used by %s, which is not moved: run on %q: %s; then on %q: %s", by, m.from, end, m.to, begin)
	}
	for _, v := range m.spec.GetVolumes() {
		if strings.Contains(strings.Join(v.GetMountOptions().GetMountFlags(), " "), "[REDACTED]") {
			return refused("the mount flags of its volume %q have a secret, which its node does not show: run on %q: pannier "+
				"workload stop %s; then on %q: pannier workload start SPEC", v.GetName(), m.from, m.id(), m.to)
		}
	}
	there, err := m.Workloads.CheckWorkload(ctx, &hostv1.CheckWorkloadRequest{Spec: m.spec, Node: m.to})
	if err != nil {
		return err
	}
	all := there.GetProblems()
	switch err := takes(ctx, m.call, m.to, m.ref.Namespace); {
	case errors.Is(err, claim.ErrIneligible), errors.Is(err, claim.ErrUnbound):
		all = append(all, err.Error())
	case err != nil:
		return err
	}
	for _, v := range there.GetVolumes() {
		one := dryVolume{
			Volume: v.GetVolume(), Mode: v.GetMode(), AccessMode: v.GetAccessMode(), AttachmentMode: v.GetAttachmentMode(),
		}
		if v.GetVolume() == "" {
			continue // its driver makes it for this workload
		}
		if err := one.claim(ctx, m.call, m.spec, m.to, m.from); err != nil {
			return err
		}
		if one.Refused != "" {
			all = append(all, one.Refused)
		}
	}
	if len(all) > 0 {
		return problems(m.call, all, "workload %q would not start on node %q now; it runs on, on node %q", m.ref, m.to, m.from)
	}
	return nil
}

// runner is what runs a workload in place of Pannier, with the commands that end it and begin it on another host;
// empty: nothing does.
func runner(w *hostv1.Workload, holders []*hostv1.Holder) (by, end, begin string) {
	switch units := w.GetSpec().GetUnits(); {
	case len(holders) > 0:
		h := holders[0]
		by, end = cmp.Or(h.GetOwner(), fmt.Sprintf("process %d (%s)", h.GetPid(), h.GetCommand())), h.GetStop()
	case w.GetOwnerPid() != 0:
		by, end = fmt.Sprintf("process %d", w.GetOwnerPid()), fmt.Sprintf("kill %d", w.GetOwnerPid())
	case len(units) > 0:
		by, end = "unit "+units[0], "systemctl stop "+units[0]
	}
	begin = "what runs it there, such as pannier workload run or docker run"
	if unit, is := strings.CutPrefix(end, "systemctl stop "); is {
		begin = "systemctl start " + unit
	}
	return by, end, begin
}

// move stops the workload and starts it on the other node or, if that fails, again where it was.
func (m *move) move(ctx context.Context) (*hostv1.Workload, error) {
	p := m.progress()
	p.note("workload %q is stopped on node %q", m.ref, m.from)
	_, err := m.stop(ctx, p, &hostv1.StopWorkloadRequest{Namespace: m.ref.Namespace, Id: m.ref.ID, Node: m.from})
	p.close()
	if err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		return nil, fmt.Errorf("stop workload %q on node %q: %w; the node may continue, and nothing starts it on node %q: %s; "+
			"when it has stopped, run on %s: pannier workload start SPEC", m.ref, m.from, err, m.to, m.status(), m.to)
	}
	w, err := m.startOn(ctx, m.to)
	if err == nil {
		return w, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("interrupted; node %q may continue to start workload %q: pannier workload status %s -node %s",
			m.to, m.ref, m.id(), m.to)
	}
	if _, again := m.startOn(ctx, m.from); again != nil {
		return nil, fmt.Errorf("workload %q is stopped: it does not start on node %q: %s; nor again on node %q: %s; when that "+
			"is fixed, run on one of them: pannier workload start SPEC", m.ref, m.to, message(err), m.from, message(again))
	}
	return nil, Coded(ExitRefused, fmt.Errorf("workload %q runs on node %q again: it does not start on node %q: %s",
		m.ref, m.from, m.to, message(err)))
}

func (m *move) startOn(ctx context.Context, node string) (*hostv1.Workload, error) {
	p := m.progress()
	defer p.close()
	p.note("workload %q is started on node %q", m.ref, node)
	return m.start(ctx, p, &hostv1.StartWorkloadRequest{Spec: m.spec, Node: node})
}

// id is the workload in a command.
func (m *move) id() string {
	if m.ref.Namespace != claim.DefaultNamespace {
		return "-namespace " + m.ref.Namespace + " " + escape.Argument(m.ref.ID)
	}
	return escape.Argument(m.ref.ID)
}

func (m *move) status() string {
	return fmt.Sprintf("pannier workload status %s -node %s", m.id(), m.from)
}
