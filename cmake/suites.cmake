# Lists the suites of the test program PROGRAM for ctest, each as one test: cmake -DPROGRAM=... -DOUTPUT=... -P suites.cmake
execute_process(COMMAND ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE listed COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "\n[^ \n]+\\." suites "\n${listed}")
set(text "")
foreach(suite IN LISTS suites)
  string(STRIP "${suite}" suite)
  string(APPEND text "add_test([=[${suite}*]=] [=[${PROGRAM}]=] [=[--gtest_filter=${suite}*]=])\n")
endforeach()
file(WRITE ${OUTPUT} "${text}")
