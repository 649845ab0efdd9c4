#include "control/sqlite_control.h"

#include <gtest/gtest.h>
