package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func validateWorkload(ctx context.Context, c *call, spec *hostv1.WorkloadSpec) error {
	resp, err := c.Workloads.CheckWorkload(ctx, &hostv1.CheckWorkloadRequest{Spec: spec})
	if unreachable := (*api.UnreachableError)(nil); errors.As(err, &unreachable) {
		c.Note("%s has no mistake in itself; the rest needs an agent", c.args[0])
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

// dryRun is what a start would do.
type dryRun struct {
	*hostv1.CheckWorkloadResponse
	spec *hostv1.WorkloadSpec
	// claims are those on the volumes, and refused why the workload would not get one; both by request.
	claims  map[string][]*hostv1.Claim
	refused map[string]string
}

// dryStart prints what a start would do and who has what, and changes nothing. It is an error if the start would be
// refused.
func dryStart(ctx context.Context, c *call, spec *hostv1.WorkloadSpec) error {
	resp, err := c.Workloads.CheckWorkload(ctx, &hostv1.CheckWorkloadRequest{Spec: spec})
	if err != nil {
		return err
	}
	d := &dryRun{
		CheckWorkloadResponse: resp, spec: spec, claims: map[string][]*hostv1.Claim{}, refused: map[string]string{},
	}
	for _, v := range resp.GetVolumes() {
		if err := d.claim(ctx, c.Client, v); err != nil {
			return err
		}
	}
	if err := c.Print(d.value(), nil, func() { showDryRun(c.Printer, d) }); err != nil {
		return err
	}
	all := resp.GetProblems()
	for _, v := range resp.GetVolumes() {
		if why := d.refused[v.GetRequest()]; why != "" {
			all = append(all, why)
		}
	}
	if len(all) > 0 {
		return problems(c, all, "workload %q would not start on node %q now", spec.GetId(), resp.GetNode())
	}
	return nil
}

// claim finds out who has a volume, and whether the workload would get its claim.
func (d *dryRun) claim(ctx context.Context, client *api.Client, v *hostv1.CheckedVolume) error {
	if v.GetVolume() == "" {
		return nil // its driver makes it for this workload
	}
	resp, err := client.Volumes.GetVolume(ctx, &hostv1.GetVolumeRequest{
		Namespace: d.spec.GetNamespace(), Id: v.GetVolume(),
	})
	if err != nil {
		return err
	}
	have := resp.GetVolume()
	ref := claim.VolumeRef{Namespace: d.spec.GetNamespace(), ID: v.GetVolume()}
	volume := claim.Volume{
		VolumeRef: ref, AccessMode: claim.AccessMode(have.GetAccessMode()),
		AttachmentMode: claim.AttachmentMode(have.GetAttachmentMode()),
	}
	for _, c := range have.GetSpec().GetCapabilities() {
		volume.Capabilities = append(volume.Capabilities, claim.Capability{
			AccessMode: claim.AccessMode(c.GetAccessMode()), AttachmentMode: claim.AttachmentMode(c.GetAttachmentMode()),
		})
	}
	var held []claim.Claim
	for _, c := range have.GetClaims() {
		held = append(held, claim.Claim{
			Volume: ref, Workload: claim.WorkloadRef{Namespace: c.GetNamespace(), ID: c.GetWorkload()}, Node: c.GetNode(),
			Mode: claim.Mode(c.GetMode()), AccessMode: claim.AccessMode(c.GetAccessMode()),
			AttachmentMode: claim.AttachmentMode(c.GetAttachmentMode()), State: claim.State(c.GetState()),
			TakenAt: c.GetTakenAt().AsTime(),
		})
	}
	_, _, err = claim.Take(volume, held, claim.Claim{
		Volume: ref, Workload: claim.WorkloadRef{Namespace: d.spec.GetNamespace(), ID: d.spec.GetId()}, Node: d.GetNode(),
		Mode: claim.Mode(v.GetMode()), AccessMode: claim.AccessMode(v.GetAccessMode()),
		AttachmentMode: claim.AttachmentMode(v.GetAttachmentMode()),
	}, time.Now())
	d.claims[v.GetRequest()] = have.GetClaims()
	if err != nil {
		d.refused[v.GetRequest()] = err.Error()
	}
	return nil
}

func showDryRun(p *Printer, d *dryRun) {
	p.Say("workload %q on node %q: %s", d.spec.GetId(), d.GetNode(), d.outcome())
	if len(d.GetVolumes()) == 0 {
		return
	}
	t := NewTable("VOLUME", "SOURCE", "DRIVER", "CLAIM", "ACCESS MODE", "ATTACHMENT", "HELD BY", "WOULD BE")
	for _, v := range d.GetVolumes() {
		would := Cell{"granted", Green}
		if d.refused[v.GetRequest()] != "" {
			would = Cell{"refused", Red}
		}
		if v.GetVolume() == "" {
			would = Cell{"made", Green}
		}
		t.Row(v.GetRequest(), v.GetVolume(), v.GetDriver(), v.GetMode(), v.GetAccessMode(), v.GetAttachmentMode(),
			holders(d.claims[v.GetRequest()]), would)
	}
	p.Show(t)
}

// outcome says in words what a start would do first.
func (d *dryRun) outcome() string {
	waits := append(append([]string{}, d.spec.GetAfter()...), d.spec.GetReplaces()...)
	switch {
	case d.GetState() == "stopping":
		return "a start would wait for the end of its earlier run"
	case d.GetState() != "" && len(d.GetProblems()) == 0:
		return fmt.Sprintf("it is %s; a start would change nothing but its services", d.GetState())
	case len(waits) > 0:
		return "a start would wait for the end of " + strings.Join(waits, ", ")
	default:
		return "a start would claim its volumes"
	}
}

// holders names those who have claims on a volume.
func holders(claims []*hostv1.Claim) string {
	var all []string
	for _, c := range claims {
		w := claim.WorkloadRef{Namespace: c.GetNamespace(), ID: c.GetWorkload()}
		all = append(all, fmt.Sprintf("%s on %s (%s)", w, c.GetNode(), c.GetMode()))
	}
	return strings.Join(all, ", ")
}

// value is what -o json prints.
func (d *dryRun) value() any {
	type volume struct {
		Request        string   `json:"request"`
		Volume         string   `json:"volume"`
		Driver         string   `json:"driver"`
		Mode           string   `json:"mode"`
		AccessMode     string   `json:"accessMode"`
		AttachmentMode string   `json:"attachmentMode"`
		Holders        []string `json:"holders"`
		Refused        string   `json:"refused"`
	}
	out := struct {
		Workload string   `json:"workload"`
		Node     string   `json:"node"`
		State    string   `json:"state"`
		Outcome  string   `json:"outcome"`
		Volumes  []volume `json:"volumes"`
		Problems []string `json:"problems"`
	}{d.spec.GetId(), d.GetNode(), d.GetState(), d.outcome(), []volume{}, append([]string{}, d.GetProblems()...)}
	for _, v := range d.GetVolumes() {
		one := volume{
			v.GetRequest(), v.GetVolume(), v.GetDriver(), v.GetMode(), v.GetAccessMode(), v.GetAttachmentMode(),
			[]string{},
			d.refused[v.GetRequest()],
		}
		for _, c := range d.claims[v.GetRequest()] {
			one.Holders = append(one.Holders, holders([]*hostv1.Claim{c}))
		}
		out.Volumes = append(out.Volumes, one)
	}
	return out
}
