package chaos

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// patience bounds one call: an agent that is cut off or stopped does not answer.
const patience = 4 * time.Second

// site is an agent that clients call.
type site struct {
	name   string
	client *api.Client
}

// start starts a workload, and returns what happened to its claim and where its volume is mounted.
func (s site) start(ctx context.Context, spec *hostv1.WorkloadSpec) (path string, out outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stream, err := s.client.Workloads.StartWorkload(ctx, &hostv1.StartWorkloadRequest{Spec: spec})
	if err != nil {
		return "", of(err), err
	}
	defer stream.Close()
	for stream.Receive() {
		if w := stream.Msg().GetWorkload(); w != nil {
			path = w.GetMounts()[0].GetHostPath()
		}
	}
	if err := stream.Err(); err != nil {
		return "", of(err), err
	}
	return path, done, nil
}

// nothing is the outcome of a call that changed nothing and says nothing about the volume.
const nothing outcome = ""

// of maps the error of a failed call to an outcome.
func of(err error) outcome {
	says := func(text string) bool { return strings.Contains(err.Error(), text) }
	switch code := connect.CodeOf(err); {
	case errors.As(err, new(*api.UnreachableError)),
		code == connect.CodeFailedPrecondition && (says("takes no workloads") || // the node is drained
			says("is being deleted") || says("while a snapshot replaces the ledger")),
		code == connect.CodeNotFound && says(`volume block "v"`): // the node does not know it, and the ledger may
		return nothing
	case code == connect.CodeFailedPrecondition && says(": held by "):
		return refused
	case code == connect.CodeNotFound && says("is not registered"):
		return absent
	default:
		return unknown
	}
}

// stop stops a workload: done when nothing is left of it, with its last state, absent when the agent does not know it.
func (s site) stop(ctx context.Context, workload string) (out outcome, state string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stream, err := s.client.Workloads.StopWorkload(ctx, &hostv1.StopWorkloadRequest{Id: workload})
	if err == nil {
		for stream.Receive() {
			if w := stream.Msg().GetWorkload(); w != nil {
				state = w.GetState()
			}
		}
		err = errors.Join(stream.Err(), stream.Close())
	}
	switch {
	case err == nil:
		return done, state, nil
	case connect.CodeOf(err) == connect.CodeNotFound:
		return absent, "", nil
	default:
		return unknown, "", err
	}
}

// read reads a volume with its claims, and the claims' fencing tokens by workload.
func (s site) read(ctx context.Context, id string) (answer shown, tokens map[string]uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	resp, err := s.client.Volumes.GetVolume(ctx, &hostv1.GetVolumeRequest{Id: id})
	if connect.CodeOf(err) == connect.CodeNotFound {
		return shown{absent: true}, nil, nil
	}
	if err != nil {
		return shown{}, nil, err
	}
	tokens = map[string]uint64{}
	for _, c := range resp.GetVolume().GetClaims() {
		answer.claims = append(answer.claims, held{
			workload: c.GetWorkload(), node: c.GetNode(), write: c.GetMode() == "write", leaving: c.GetState() != "taken",
		})
		tokens[c.GetWorkload()] = c.GetIndex()
	}
	return answer, tokens, nil
}

// detach detaches a volume from a node. The outcome is absent where nothing was attached, or where
// an earlier attempt whose answer was lost has detached it already.
func (s site) detach(ctx context.Context, id, node string) outcome {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := s.client.Volumes.DetachVolume(ctx, &hostv1.DetachVolumeRequest{Id: id, Node: node})
	switch {
	case err == nil:
		return done
	case connect.CodeOf(err) == connect.CodeNotFound:
		return absent
	case errors.As(err, new(*api.UnreachableError)):
		return nothing
	default:
		return unknown
	}
}

// drain begins to drain a node, or ends that.
func (s site) drain(ctx context.Context, node string, enable bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := s.client.Nodes.DrainNode(ctx, &hostv1.DrainNodeRequest{Name: node, Enable: enable})
	return err
}

func (s site) deregister(ctx context.Context, id string) outcome {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := s.client.Volumes.DeregisterVolume(ctx, &hostv1.DeregisterVolumeRequest{Id: id})
	if err != nil {
		return of(err)
	}
	return done
}

// remove deletes a volume with its data.
func (s site) remove(ctx context.Context, id string) outcome {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := s.client.Volumes.DeleteVolume(ctx, &hostv1.DeleteVolumeRequest{Id: id})
	if err != nil {
		return of(err)
	}
	return done
}

// create creates a volume, and the file that its writers append to.
func (s site) create(ctx context.Context, v *target) outcome {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := s.client.Volumes.CreateVolume(ctx, &hostv1.CreateVolumeRequest{Spec: v.made})
	if err == nil {
		if err := os.WriteFile(v.data, nil, 0o600); err != nil {
			panic(err)
		}
	}
	return ofAddition(err)
}

func (s site) register(ctx context.Context, spec *hostv1.VolumeSpec) outcome {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := s.client.Volumes.RegisterVolume(ctx, &hostv1.RegisterVolumeRequest{Spec: spec})
	return ofAddition(err)
}

// ofAddition maps the outcome of a call that makes a volume known, which nothing refuses.
func ofAddition(err error) outcome {
	switch {
	case err == nil:
		return done
	case errors.As(err, new(*api.UnreachableError)):
		return nothing
	default:
		return unknown
	}
}

func pick[T any](chance *rand.Rand, from []T) T { return from[chance.IntN(len(from))] }

func between(chance *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(chance.Int64N(int64(most-least)))
}
