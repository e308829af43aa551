package controllers

import "errors"

// ErrOffline says that the driver expands only volumes that nobody uses.
var ErrOffline = errors.New("the driver can expand it only while nobody uses it")
