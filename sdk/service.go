package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
)

// service is PluginService, the same for every kind.
type service struct {
	pluginv1.UnimplementedPluginServiceServer
	info   Info
	plugin Plugin
	life   *lifetime
}

func (s *service) Info(context.Context, *pluginv1.InfoRequest) (*pluginv1.InfoResponse, error) {
	return &pluginv1.InfoResponse{Name: s.info.Name, Version: s.info.Version, Kind: s.plugin.Kind}, nil
}

func (s *service) Validate(ctx context.Context, req *pluginv1.ValidateRequest) (*pluginv1.ValidateResponse, error) {
	if err := s.validate(ctx, req.GetConfig()); err != nil {
		return nil, err
	}
	return &pluginv1.ValidateResponse{}, nil
}

func (s *service) validate(ctx context.Context, config []byte) error {
	if v, ok := s.plugin.Impl.(Validator); ok {
		if err := v.Validate(ctx, orEmpty(config)); err != nil {
			return orInvalid(err)
		}
		return nil
	}
	if _, ok := s.plugin.Impl.(Configurer); ok {
		return nil
	}
	return refuseKeys(s.info.Name, orEmpty(config))
}

func (s *service) Configure(ctx context.Context, req *pluginv1.ConfigureRequest) (*pluginv1.ConfigureResponse, error) {
	c, ok := s.plugin.Impl.(Configurer)
	if !ok {
		if err := refuseKeys(s.info.Name, orEmpty(req.GetConfig())); err != nil {
			return nil, err
		}
		return &pluginv1.ConfigureResponse{}, nil
	}
	if err := c.Configure(ctx, orEmpty(req.GetConfig())); err != nil {
		return nil, orInvalid(err)
	}
	return &pluginv1.ConfigureResponse{}, nil
}

func (s *service) Stop(context.Context, *pluginv1.StopRequest) (*pluginv1.StopResponse, error) {
	s.life.stop("the host asked for it")
	return &pluginv1.StopResponse{}, nil
}

// Attend sends the health until the host goes.
func (s *service) Attend(req *pluginv1.AttendRequest, stream grpc.ServerStreamingServer[pluginv1.AttendResponse]) error {
	release := s.life.attend(time.Duration(req.GetOrphanTimeoutMs()) * time.Millisecond)
	defer release()

	ctx := stream.Context()
	tick := time.NewTicker(healthInterval)
	defer tick.Stop()
	check := &healthCheck{impl: s.plugin.Impl}
	var last string
	var sent time.Time
	for {
		message := check.run(ctx)
		if sent.IsZero() || message != last || time.Since(sent) >= healthRepeat {
			if err := stream.Send(&pluginv1.AttendResponse{Healthy: message == "", Message: message}); err != nil {
				return err
			}
			last, sent = message, time.Now()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func orEmpty(config []byte) []byte {
	if len(config) == 0 {
		return []byte("{}")
	}
	return config
}

// orInvalid gives an error that carries no gRPC status the code of a wrong
// configuration.
func orInvalid(err error) error {
	if _, ok := status.FromError(err); ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return status.Error(codes.InvalidArgument, err.Error())
}

// refuseKeys is the validation of a plugin that has no configuration: a key
// that nobody reads is a mistake of the operator's.
func refuseKeys(name string, config []byte) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(config, &keys); err != nil {
		return status.Errorf(codes.InvalidArgument, "the configuration is not a JSON object: %v", err)
	}
	if len(keys) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(keys))
	return status.Errorf(codes.InvalidArgument, "plugin %q has no configuration, got %s", name, strings.Join(names, ", "))
}
