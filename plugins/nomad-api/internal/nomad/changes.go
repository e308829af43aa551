package nomad

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/nomad/api"
	"google.golang.org/protobuf/types/known/durationpb"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// volumes is the body of a registration and of a creation, and of their answers.
type volumes struct {
	Volumes  []*api.CSIVolume
	Warnings string
}

// releaseWait is how long a forced deregistration waits for claims that are being released.
const releaseWait = 30 * time.Second

// registerVolume registers a volume that exists at its driver, or changes the definition of a registered one.
func (s *server) registerVolume(ctx context.Context, q query, r *http.Request) (answer, error) {
	spec, err := requested(q, r)
	if err != nil {
		return answer{}, err
	}
	v, warnings, err := s.register(ctx, spec)
	if err != nil {
		return answer{}, err
	}
	return changed(v, warnings), nil
}

// createVolume creates a volume. One that exists with another definition gets the new one, as in Nomad: what its driver
// was told at its creation cannot change.
func (s *server) createVolume(ctx context.Context, q query, r *http.Request) (answer, error) {
	spec, err := requested(q, r)
	if err != nil {
		return answer{}, err
	}
	res, err := s.api.Volumes.CreateVolume(ctx, &hostv1.CreateVolumeRequest{Spec: spec})
	if connect.CodeOf(err) == connect.CodeAlreadyExists {
		return s.redefine(ctx, spec, err)
	}
	if err != nil {
		return answer{}, err
	}
	return changed(res.GetVolume(), res.GetWarnings()), nil
}

// redefine changes the definition of a volume that was created, if only what can change differs.
func (s *server) redefine(ctx context.Context, spec *hostv1.VolumeSpec, refusal error) (answer, error) {
	res, err := s.api.Volumes.GetVolume(ctx, &hostv1.GetVolumeRequest{Namespace: spec.GetNamespace(), Id: spec.GetId()})
	if err != nil {
		return answer{}, err
	}
	is := res.GetVolume().GetSpec()
	if is.GetPluginId() != spec.GetPluginId() || is.GetCloneId() != spec.GetCloneId() ||
		is.GetSnapshotId() != spec.GetSnapshotId() || !maps.Equal(is.GetParameters(), spec.GetParameters()) ||
		spec.GetExternalId() != "" && spec.GetExternalId() != is.GetExternalId() {
		return answer{}, refusal
	}
	spec.ExternalId, spec.Context = is.GetExternalId(), is.GetContext()
	v, warnings, err := s.register(ctx, spec)
	if err != nil {
		return answer{}, err
	}
	return changed(v, warnings), nil
}

// register registers a volume, and grows it to the size that it is to have at least.
func (s *server) register(ctx context.Context, spec *hostv1.VolumeSpec) (*hostv1.Volume, []string, error) {
	res, err := s.api.Volumes.RegisterVolume(ctx, &hostv1.RegisterVolumeRequest{Spec: spec})
	if err != nil {
		return nil, nil, err
	}
	v := res.GetVolume()
	if v.GetCapacity() == 0 || spec.GetCapacityMin() <= v.GetCapacity() {
		return v, res.GetWarnings(), nil
	}
	grown, err := s.api.Volumes.ExpandVolume(ctx, &hostv1.ExpandVolumeRequest{
		Namespace: spec.GetNamespace(), Id: spec.GetId(),
		CapacityMin: spec.GetCapacityMin(), CapacityMax: spec.GetCapacityMax(),
	})
	if err != nil {
		return nil, nil, fmt.Errorf("volume %q is registered, but not grown: %w", spec.GetId(), err)
	}
	return grown.GetVolume(), nil, nil
}

// requested reads the volume of a request.
func requested(q query, r *http.Request) (*hostv1.VolumeSpec, error) {
	var body volumes
	if err := read(r, &body); err != nil {
		return nil, err
	}
	if len(body.Volumes) != 1 || body.Volumes[0] == nil {
		return nil, badRequest("the request has %d Volumes, and must have one", len(body.Volumes))
	}
	return specOf(body.Volumes[0], r.PathValue("id"), q.namespace)
}

// changed answers with a volume after a change.
func changed(v *hostv1.Volume, warnings []string) answer {
	return answer{
		value: volumes{[]*api.CSIVolume{volumeOf(v)}, strings.Join(warnings, "\n")},
		meta:  &hostv1.ReadMeta{Index: v.GetModifyIndex(), KnownLeader: true},
	}
}

// deregisterVolume removes a volume from the ledger and leaves it at its driver. As in Nomad, force removes no claim of
// a workload that uses the volume: it waits for those that are being released.
func (s *server) deregisterVolume(ctx context.Context, q query, r *http.Request) (answer, error) {
	force, err := isTrue(r, "force")
	if err != nil {
		return answer{}, err
	}
	id, until := r.PathValue("id"), time.Now().Add(releaseWait)
	for {
		_, err := s.api.Volumes.DeregisterVolume(ctx, &hostv1.DeregisterVolumeRequest{Namespace: q.namespace, Id: id})
		if err == nil || !force || connect.CodeOf(err) != connect.CodeFailedPrecondition || !s.released(ctx, q, id, until) {
			return answer{}, err
		}
	}
}

// released waits until claims that are being released are gone. It returns false if others stand, or until has passed.
func (s *server) released(ctx context.Context, q query, id string, until time.Time) bool {
	var index uint64
	for {
		left := time.Until(until)
		if left <= 0 || ctx.Err() != nil || s.serving.Err() != nil {
			return false
		}
		res, err := s.api.Volumes.GetVolume(ctx, &hostv1.GetVolumeRequest{
			Namespace: q.namespace, Id: id, Read: &hostv1.ReadOptions{Index: index, Wait: durationpb.New(left)},
		})
		if err != nil {
			return false
		}
		claims := res.GetVolume().GetClaims()
		if len(claims) == 0 {
			return true
		}
		if slices.ContainsFunc(claims, func(c *hostv1.Claim) bool { return c.GetState() == stateTaken }) {
			return false
		}
		index = res.GetMeta().GetIndex()
	}
}

// deleteVolume deletes a volume at its driver. One that is gone is deleted.
func (s *server) deleteVolume(ctx context.Context, q query, r *http.Request) (answer, error) {
	secrets, err := secretsOf(r)
	if err != nil {
		return answer{}, err
	}
	_, err = s.api.Volumes.DeleteVolume(ctx, &hostv1.DeleteVolumeRequest{
		Namespace: q.namespace, Id: r.PathValue("id"), Secrets: secrets,
	})
	if missing(err) {
		err = nil
	}
	return answer{}, err
}
