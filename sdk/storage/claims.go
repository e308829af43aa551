package storage

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
)

// claims compares a fingerprint with the optional interfaces of impl. What it claims and the plugin lacks would fail
// in the middle of a workload's start; the error says so when the driver is first looked at.
func claims(impl Storage, f Fingerprint) error {
	var c ControllerCapabilities
	var n NodeCapabilities
	if f.Controller != nil {
		c = *f.Controller
	}
	if f.Node != nil {
		n = *f.Node
	}
	var lacks []string
	for _, claim := range []struct {
		made, kept bool
		what       string
	}{
		{c.AttachDetach, has[Attacher](impl), "Controller.AttachDetach needs Attacher"},
		{c.CreateDelete || c.ListVolumes, has[Provisioner](impl), "Controller.CreateDelete and ListVolumes need Provisioner"},
		{c.GetCapacity, has[CapacityReader](impl), "Controller.GetCapacity needs CapacityReader"},
		{
			c.CreateDeleteSnapshot || c.ListSnapshots, has[Snapshotter](impl),
			"Controller.CreateDeleteSnapshot and ListSnapshots need Snapshotter",
		},
		{c.Expand || n.Expand, has[Expander](impl), "Controller.Expand and Node.Expand need Expander"},
		{n.StageUnstage, has[Stager](impl), "Node.StageUnstage needs Stager"},
		{n.VolumeStats, has[StatsReader](impl), "Node.VolumeStats needs StatsReader"},
	} {
		if claim.made && !claim.kept {
			lacks = append(lacks, claim.what)
		}
	}
	if lacks == nil {
		return nil
	}
	return status.Errorf(codes.Internal, "the fingerprint claims what %T cannot do: %s: implement it, leave the claim out, "+
		"or give a type that wraps the implementation the method Unwrap() any", impl, strings.Join(lacks, "; "))
}

func has[T any](impl Storage) bool {
	_, ok := sdk.As[T](impl)
	return ok
}
