package controllers

import (
	"errors"

	"google.golang.org/grpc/status"
)

// What keeps a driver from being called, for errors.Is.
var (
	// ErrUnhealthy: the driver cannot be called now. The error's text says why.
	ErrUnhealthy = errors.New("the driver is not healthy")
	// ErrOffline: the driver expands only volumes that nobody uses.
	ErrOffline = errors.New("the driver can expand it only while nobody uses it")
)

// driverError is a gRPC status error that reads as the driver's own words. Its
// code is found by status.FromError through all that is wrapped around it.
type driverError struct{ err error }

func (e driverError) Error() string { return status.Convert(e.err).Message() }

func (e driverError) Unwrap() error { return e.err }

// plain takes gRPC's frame ("rpc error: code = ...") off the text of an error
// that came from the plugin as it is.
func plain(err error) error {
	// A wrapped one has text of its own that must stay.
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return driverError{err}
	}
	return err
}
