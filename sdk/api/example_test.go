package api_test

import (
	"context"
	"fmt"
	"log"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// Example starts a workload, follows its steps and prints where its volumes are mounted.
func Example() {
	if err := start(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func start(ctx context.Context) error {
	client, err := api.New(api.DefaultAddress)
	if err != nil {
		return err
	}
	defer client.Close()

	stream, err := client.Workloads.StartWorkload(ctx, &hostv1.StartWorkloadRequest{
		Spec: &hostv1.WorkloadSpec{
			Namespace: "default",
			Id:        "redis",
			Volumes:   []*hostv1.VolumeRequest{{Name: "data", Source: "data", Destination: "/data"}},
		},
	})
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Receive() {
		if step := stream.Msg().GetStep(); step != nil {
			fmt.Println(step.Name, step.Volume, step.State)
		}
		for _, mount := range stream.Msg().GetWorkload().GetMounts() {
			fmt.Println(mount.HostPath, "is for", mount.Destination)
		}
	}
	return stream.Err()
}
