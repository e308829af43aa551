package volumes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// work starts and stops the workloads of volumes, by the host's API.
type work struct {
	api *api.Client

	mu   sync.Mutex
	node string // this node's name, once it is known
}

const (
	// callTimeout bounds a call that waits for nothing but the host.
	callTimeout = 30 * time.Second
	// retryPause is the pause before a start is tried again that failed for want of a leader, a driver or the like.
	retryPause = time.Second
	// maxRefusals is how often a start is refused, although nobody has the volume, before that is final. Who had it may
	// just have released it.
	maxRefusals = 2
	// destination is where a workload has its volume. The engine mounts it elsewhere.
	destination = "/volume"
	// maxWorkloadID is the longest id of a workload.
	maxWorkloadID = 128
)

// workloadOf names the workload of a volume on this node. Workloads are unique in the cluster, so the name has the node
// in it.
func (w *work) workloadOf(ctx context.Context, name, namespace string) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.node == "" {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		res, err := w.api.Workloads.ListWorkloads(ctx, &hostv1.ListWorkloadsRequest{Namespace: namespace})
		if err != nil {
			return "", err
		}
		w.node = res.GetNode()
	}
	id := "docker-volume." + name + "." + w.node
	if len(id) > maxWorkloadID {
		return "", fmt.Errorf("volume %q: the name is too long: at most %d characters on this node", name,
			maxWorkloadID-len(id)+len(name))
	}
	return id, nil
}

// start starts the workload of a volume, or joins it, and returns where the volume is mounted. While others have the
// volume it waits, until ctx ends or for the timeout; the error then names them.
func (w *work) start(ctx context.Context, name string, r record, timeout time.Duration) (path string, err error) {
	id, err := w.workloadOf(ctx, name, r.Namespace)
	if err != nil {
		return "", err
	}
	spec := &hostv1.WorkloadSpec{Namespace: r.Namespace, Id: id, Volumes: []*hostv1.VolumeRequest{{
		Name: "volume", Source: name, ReadOnly: r.ReadOnly, Destination: destination,
	}}}
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for refusals := 0; ; {
		path := ""
		stream, err := w.api.Workloads.StartWorkload(waiting, &hostv1.StartWorkloadRequest{Spec: spec})
		if err == nil {
			for stream.Receive() {
				for _, m := range stream.Msg().GetWorkload().GetMounts() {
					path = m.GetHostPath()
				}
			}
			err = stream.Err()
			_ = stream.Close()
		}
		switch {
		case err == nil && path == "":
			return "", fmt.Errorf("workload %q was started without a mount", id)
		case err == nil:
			return path, nil
		case connect.CodeOf(err) == connect.CodeFailedPrecondition:
			held, failed := w.awaitChange(waiting, name, r.Namespace, id)
			if failed != nil && !temporary(failed) {
				return "", errors.Join(err, failed)
			}
			if refusals++; held {
				refusals = 0
			}
		case !temporary(err):
			refusals = maxRefusals
		}
		if refusals >= maxRefusals && waiting.Err() == nil {
			return "", err // nobody else has it: there is another reason
		}
		select {
		case <-waiting.Done():
			if ctx.Err() != nil {
				return "", context.Cause(ctx)
			}
			return "", w.explain(ctx, name, r.Namespace, id, timeout, err)
		case <-time.After(retryPause):
		}
	}
}

// temporary reports whether a call may succeed later by itself.
func temporary(err error) bool {
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeAborted, connect.CodeResourceExhausted:
		return true
	default:
		return false
	}
}

// awaitChange waits until the claims of a volume change, if others than the workload have one, or its earlier run.
func (w *work) awaitChange(ctx context.Context, name, namespace, id string) (held bool, err error) {
	get := func(read *hostv1.ReadOptions) (*hostv1.GetVolumeResponse, error) {
		return w.api.Volumes.GetVolume(ctx, &hostv1.GetVolumeRequest{Namespace: namespace, Id: name, Read: read})
	}
	now, err := get(nil)
	if err != nil {
		return false, err
	}
	for _, c := range now.GetVolume().GetClaims() {
		held = held || c.GetWorkload() != id || c.GetState() != "taken"
	}
	if held {
		_, err = get(&hostv1.ReadOptions{Index: now.GetMeta().GetIndex(), Wait: durationpb.New(callTimeout)})
	}
	return held, err
}

// explain names who has a volume that was waited for.
func (w *work) explain(ctx context.Context, name, namespace, id string, waited time.Duration, last error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := w.api.Volumes.ExplainVolume(ctx, &hostv1.ExplainVolumeRequest{Namespace: namespace, Id: name})
	if err != nil {
		return fmt.Errorf("volume %q could not be had within %s: %w", name, waited, last)
	}
	var holders []string
	for _, c := range res.GetClaims() {
		claim := c.GetClaim()
		if claim.GetWorkload() == id {
			continue
		}
		command := c.GetCommand()
		if command == "" {
			command = fmt.Sprintf("pannier workload stop -namespace %s %s", claim.GetNamespace(), claim.GetWorkload())
		}
		text := fmt.Sprintf("workload %q on node %q has it since %s (%s, %s)", claim.GetWorkload(), claim.GetNode(),
			claim.GetTakenAt().AsTime().Format(time.RFC3339), claim.GetMode(), claim.GetState())
		if waits := c.GetWaitsFor(); waits != "" {
			text += ", which waits for " + waits
		}
		holders = append(holders, fmt.Sprintf("%s; to end that: %s (on node %q)", text, command, claim.GetNode()))
	}
	if len(holders) == 0 {
		return fmt.Errorf("volume %q could not be had within %s: %w", name, waited, last)
	}
	return fmt.Errorf("volume %q could not be had within %s: %s", name, waited, strings.Join(holders, "; "))
}

// now is the state of a volume's workload on this node.
type now struct {
	up      bool   // it is there, and not being stopped
	path    string // where the volume is mounted; empty: nowhere
	holders []*hostv1.Holder
	looked  time.Time
}

// look finds the workload of a volume, and who has the volume besides the host.
func (w *work) look(ctx context.Context, name, namespace string) (n now, err error) {
	id, err := w.workloadOf(ctx, name, namespace)
	if err != nil {
		return n, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	n.looked = time.Now()
	res, err := w.api.Workloads.GetWorkload(ctx, &hostv1.GetWorkloadRequest{Namespace: namespace, Id: id, Holders: true})
	if connect.CodeOf(err) == connect.CodeNotFound {
		return n, nil
	}
	if err != nil {
		return n, err
	}
	workload := res.GetWorkload()
	n.up, n.holders = workload.GetState() == "starting" || workload.GetState() == "running", res.GetHolders()
	if workload.GetState() == "running" {
		for _, m := range workload.GetMounts() {
			n.path = m.GetHostPath()
		}
	}
	return n, nil
}

// stop asks the host to stop the workload of a volume, and returns once it will: the host repeats what fails. With
// wait it returns when nothing is left of it.
func (w *work) stop(ctx context.Context, name, namespace string, wait bool) error {
	id, err := w.workloadOf(ctx, name, namespace)
	if err != nil {
		return err
	}
	stream, err := w.api.Workloads.StopWorkload(ctx, &hostv1.StopWorkloadRequest{Namespace: namespace, Id: id})
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Receive() && wait {
		continue
	}
	if err := stream.Err(); connect.CodeOf(err) != connect.CodeNotFound {
		return err
	}
	return nil
}

// define makes sure that a volume is registered: an existing one is used as it is, unless options define it.
func (w *work) define(ctx context.Context, want wish) error {
	if !want.defines {
		_, err := w.api.Volumes.GetVolume(ctx, &hostv1.GetVolumeRequest{
			Namespace: want.def.GetNamespace(), Id: want.def.GetId(),
		})
		if connect.CodeOf(err) != connect.CodeNotFound {
			return err
		}
	}
	if want.def.GetPluginId() == "" {
		return fmt.Errorf("volume %q: no CSI driver is named: give -o %s=ID, or write driver into the plugin's config block",
			want.def.GetId(), optDriver)
	}
	_, err := w.api.Volumes.CreateVolume(ctx, &hostv1.CreateVolumeRequest{Spec: want.def})
	return err
}

// findTimeout bounds a look at the ledger, which the engine takes for any volume that it does not know.
const findTimeout = 5 * time.Second

// found returns how a volume of the ledger is used on a host where it was not created. nil: only a Create can say that,
// since one host writes and others read, or the engine made the name up.
func found(v *hostv1.Volume) *record {
	r := &record{Namespace: v.GetSpec().GetNamespace(), CreatedAt: v.GetCreatedAt().AsTime(), ReadOnly: true}
	files := false
	for _, c := range v.GetSpec().GetCapabilities() {
		if c.GetAccessMode() == "multi-node-single-writer" {
			return nil
		}
		files = files || c.GetAttachmentMode() == "file-system"
		r.ReadOnly = r.ReadOnly && strings.HasSuffix(c.GetAccessMode(), "-reader-only")
	}
	if !files || anonymous(v.GetSpec().GetId()) || !goodName.MatchString(v.GetSpec().GetId()) {
		return nil
	}
	return r
}

// find looks for a volume in the ledger.
func (w *work) find(ctx context.Context, name, namespace string) (*record, error) {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	res, err := w.api.Volumes.GetVolume(ctx, &hostv1.GetVolumeRequest{
		Namespace: namespace, Id: name, Read: &hostv1.ReadOptions{Stale: true},
	})
	if connect.CodeOf(err) == connect.CodeNotFound {
		return nil, nil
	}
	return found(res.GetVolume()), err
}

// all lists the volumes that find finds.
func (w *work) all(ctx context.Context, namespace string) (names []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	res, err := w.api.Volumes.ListVolumes(ctx, &hostv1.ListVolumesRequest{
		Namespace: namespace, Read: &hostv1.ReadOptions{Stale: true},
	})
	for _, v := range res.GetVolumes() {
		if found(v) != nil {
			names = append(names, v.GetSpec().GetId())
		}
	}
	return names, err
}

// destroy deletes a volume at its driver. One that is gone is gone.
func (w *work) destroy(ctx context.Context, name, namespace string) error {
	_, err := w.api.Volumes.DeleteVolume(ctx, &hostv1.DeleteVolumeRequest{Namespace: namespace, Id: name})
	if connect.CodeOf(err) == connect.CodeNotFound {
		return nil
	}
	return err
}
