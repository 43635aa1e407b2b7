# Writes ${OUTPUT}: the commit that ${ROOT} is at, and "+" if files differ from it; its day; ${BUILD_TYPE}. Left alone
# where nothing changed, so that nothing is compiled again.
set(commit "")
set(date "")
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} -C ${ROOT} rev-parse HEAD OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE
                  ERROR_QUIET RESULT_VARIABLE failed)
  execute_process(COMMAND ${GIT} -C ${ROOT} log -1 --format=%cs OUTPUT_VARIABLE date OUTPUT_STRIP_TRAILING_WHITESPACE
                  ERROR_QUIET)
  execute_process(COMMAND ${GIT} -C ${ROOT} status --porcelain --untracked-files=no OUTPUT_VARIABLE changes ERROR_QUIET)
  if(failed)
    set(commit "")
  elseif(changes)
    string(APPEND commit "+")
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define ORRERY_COMMIT \"${commit}\"
#define ORRERY_COMMIT_DATE \"${date}\"
#define ORRERY_BUILD_TYPE \"${BUILD_TYPE}\"
")
